// One rank of an exchange by another library, measured as benchmarks/exchange/exchange_runner.h
// measures ours: the same inputs, the same start line, the same moments at which the clock is read,
// the same check of every result.
//
// Used by programs that Bazel builds and by those that tools/setup --peers builds without it, so it
// needs Abseil and nothing else.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RANK_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RANK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

// Errors: INVALID_ARGUMENT naming the argument, what was expected and what came.
absl::StatusOr<PeerRankOptions> ParsePeerRankOptions(int argc, char** argv);

// Memory for floats on a boundary of 2 MiB. With huge pages it is better than what a library that
// allocates tensors would give its user. Ends the process when there is none.
class PeerBuffer {
 public:
  PeerBuffer(int64_t floats, bool huge_pages);
  ~PeerBuffer();

  PeerBuffer(const PeerBuffer&) = delete;
  PeerBuffer& operator=(const PeerBuffer&) = delete;

  float* data() { return data_; }

 private:
  float* const data_;
};

// What is in `output` after each exchange.
enum class PeerResult {
  kSum,  // of all ranks' inputs
  kOwnInput,
  kPreviousInput,  // of rank - 1, cyclically
};

struct PeerExchange {
  float* input = nullptr;
  float* output = nullptr;  // may be the input
  PeerResult result = PeerResult::kSum;
  std::function<absl::Status()> run;
  double wire_bytes = 0;  // that this rank sends per exchange; 0 when the program does not know
};

// Fills, waits at the start line, times `run`, waits again (checking takes cores, which ranks that
// are still at it need), checks; warmup + iterations times. Then writes the metrics file and waits
// until all ranks have done so. The same on all ranks; blocks. A sum is checked as the mean that it
// stands for, so that its rounding is that of ours. Errors: those of `run`, of the start line and
// of the file. Wrong results are counted, not an error.
absl::Status MeasurePeer(const PeerRankOptions& options, const PeerExchange& exchange);

// Prints a failure as one line that names the program and the rank; the exit code: 0, 2 for
// INVALID_ARGUMENT, else 1.
int PeerExitCode(absl::string_view program, int rank, const absl::Status& status);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_RANK_H_
