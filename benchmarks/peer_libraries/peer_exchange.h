// The same exchange by gradsync and by others, in turns within one run.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_EXCHANGE_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_EXCHANGE_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "benchmarks/peer_libraries/peer_job.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// As the flags of the same names have them; see `peers --help`.
struct PeerExchangeOptions {
  PeerExchangeOptions() {
    job.exchange.iterations = 0;
    job.exchange.warmup = -1;
    job.exchange.timeout = absl::Seconds(30);
  }

  std::vector<std::string> workers = {"2"};
  std::vector<std::string> bytes = {"4KiB", "256KiB", "25MiB"};
  std::vector<std::string> contestants;  // none: all
  int rounds = 9;
  PeerJob job;  // of a round; how many ranks and bytes is up to the case
};

// One size and one number of ranks.
struct PeerCase {
  PeerJob job;
  std::vector<Contestant> contestants;
};

// Checks everything. `cores` are of this machine. 0 iterations become a number by size, with which a
// round of small exchanges, too, is one of warm caches and not of its own beginning: as many as move
// 32 MiB, from 5 to 500, where ranks share cores to 50. -1 warm-up exchanges become a tenth of the
// iterations, at least 2. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<std::vector<PeerCase>> ListPeerCases(const PeerExchangeOptions& options, int cores);

struct PeerOutcome {
  std::vector<proto::Run> records;
  std::string table;
  double wrong = 0;          // elements, over all contestants
  std::string ours_failure;  // of ours that was not refused but failed; empty when none
};

// Measures one case: every setting of every contestant once, to keep the best of each that is
// right; then `rounds` rounds in which each contestant runs one short job, beginning with another
// one each time. One that takes long to start is started once (peer_job.h). A contestant that
// fails once is out, and its record says why; so does that of a library which is not installed.
// `progress` gets a line now and then. Blocks for minutes. Errors: CANCELLED when interrupted.
absl::StatusOr<PeerOutcome> MeasurePeerCase(const PeerPrograms& programs, const PeerCase& peer_case,
                                            int rounds,
                                            const std::function<void(absl::string_view)>& progress);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_EXCHANGE_H_
