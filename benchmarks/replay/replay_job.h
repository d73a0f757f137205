#ifndef GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_
#define GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/replay/replay_cases.h"
#include "proto/run_record.pb.h"

namespace gradsync {

struct ReplayPrograms {
  std::string rank_binary;                      // paths
  std::string server_binary;                    // needed for cases with servers
  const EmulatedNetwork* network = nullptr;     // null: this host; not owned
  const std::atomic<int>* interrupt = nullptr;  // as LocalJobOptions has it
};

// One measurement with real processes: a rank per worker, and the servers, each on its host when
// there is a network. Blocks until all of them are gone; leaves no file behind.
// Errors: INVALID_ARGUMENT when a rank refuses its flags; CANCELLED when interrupted; otherwise
// the job failed (ABORTED, with the first failure's own words) or its metrics make no sense
// (DATA_LOSS).
absl::StatusOr<proto::Run> RunReplayJob(const ReplayCase& replay, const ReplayPrograms& programs);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_REPLAY_JOB_H_
