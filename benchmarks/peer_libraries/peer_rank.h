// One rank of an exchange by another library, measured as benchmarks/exchange/exchange_runner.h
// measures ours: the same inputs, the same start line, the same moments at which the clock is read,
// the same check of every result.
//
// Used by programs that Bazel builds and by those that tools/setup --peers builds without it, so it
// needs Abseil and nothing else.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RANK_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RANK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

// What peer_exchange asks of a rank: --rank, --world_size, --bytes and so on. A launcher that
// numbers the ranks itself (mpiexec) leaves --rank out; the program then sets it.
struct PeerRankOptions {
  int rank = -1;
  int world_size = 0;
  int64_t bytes = 0;  // of one exchange, a whole number of floats
  int iterations = 1;
  int warmup = 0;
  std::string variant;     // which of the library's algorithms; each program says what it knows
  std::string start_line;  // see benchmarks/ranks/start_line.h
  std::string folder;      // of this job alone: metrics go to FOLDER/rank.N.json; rendezvous files
  bool huge_pages = true;  // for the buffers
  absl::Duration timeout = absl::Seconds(60);
};

// What is in `output` after each exchange.
enum class PeerResult {
  kSum,  // of all ranks' inputs
  kOwnInput,
  kPreviousInput,  // of rank - 1, cyclically
};

struct PeerExchange {
  // The program has the memory.
  PeerExchange() = default;
  // Memory of its own on boundaries of 2 MiB, in place the same for both. With huge pages it is
  // better than what a library that allocates tensors would give its user. Ends the process when
  // there is none.
  PeerExchange(const PeerRankOptions& options, bool in_place);

  float* input = nullptr;
  float* output = nullptr;  // may be the input
  PeerResult result = PeerResult::kSum;
  std::function<absl::Status()> run;
  double wire_bytes = 0;  // that this rank sends per exchange; 0 when the program does not know
  std::vector<std::unique_ptr<float, void (*)(void*)>> memory;  // of its own
};

// Computes a while (SpreadOverCores()). Fills, passes the start line twice, times `run`, waits again
// (checking takes cores, which ranks that are still at it need), checks; warmup + iterations times.
// Then writes the metrics file and waits until all ranks have done so. The same on all ranks;
// blocks. A sum is checked as the mean that it stands for, so that its rounding is that of ours.
// Errors: those of `run`, of the start line and of the file. Wrong results are counted, not an
// error.
absl::Status MeasurePeer(const PeerRankOptions& options, const PeerExchange& exchange);

// The main of such a program: runs `run`, which may set the rank, and returns the exit code: 0, 2
// for INVALID_ARGUMENT (of `run`, or naming the argument that was wrong), else 1. A failure, also
// an exception of the library, is printed as one line that names `program` and the rank.
int PeerMain(absl::string_view program, int argc, char** argv,
             const std::function<absl::Status(PeerRankOptions& options)>& run);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RANK_H_
