// One short job of a contestant, with processes of its own or with those that wait for their turns.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_JOB_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_JOB_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/exchange/exchange_job.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "benchmarks/peer_libraries/peer_contestants.h"
#include "benchmarks/ranks/processes.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// A peer that takes longer to start than to measure, so that its processes live through all rounds
// and sleep while others have their turn. One process is talked to, which has the others: it says
// "ready" when all are there, and answers each line with "done" or with why not. What else it
// prints is left out.
//
// Not thread-safe.
class StandingPeer {
 public:
  // `command` is started at the first turn, with `environment`, NAME=value each. `installed` names
  // a file without which there is nothing to start.
  StandingPeer(std::vector<std::string> command, std::vector<std::string> environment,
               std::string installed)
      : command_(std::move(command)),
        environment_(std::move(environment)),
        installed_(std::move(installed)) {}

  // Blocks until the turn has ended. After an error its processes are gone, and the next turn would
  // start others. Errors: NOT_FOUND saying what to install; ABORTED or UNAVAILABLE with what
  // it said or when it has ended;
  // DEADLINE_EXCEEDED, naming `timeout`; CANCELLED when `interrupt`, if there is one, is not 0.
  absl::Status TakeTurn(const std::string& turn, absl::Duration timeout,
                        const std::atomic<int>* interrupt);

 private:
  absl::Status Start(absl::Duration timeout, const std::atomic<int>* interrupt);
  absl::Status Await(const std::string& answer, absl::Duration timeout,
                     const std::atomic<int>* interrupt);

  const std::vector<std::string> command_;
  const std::vector<std::string> environment_;
  const std::string installed_;
  std::unique_ptr<InteractiveProcess> process_;  // null: not started, or it failed
};

// Where programs are, those of ours (without the network) and the others'.
struct PeerPrograms : ExchangeJobOptions {
  std::string grpc_stream_rank;
  std::string built_folder;      // has peer_gloo, peer_memcpy and so on, from this build
  std::string installed_folder;  // what tools/setup --peers made; need not exist
  std::string tensorflow_ps;     // the script
};

// One short job: processes start, meet, warm up, exchange, end.
struct PeerJob {
  ExchangeOptions exchange;          // bytes: a multiple of 4; timeout: of the whole job
  bool huge_pages = true;            // of the peers' buffers, where the system offers them
  StandingPeer* standing = nullptr;  // that of a contestant that is started once
};

// Runs it and blocks until all processes are gone. The record has the times of the iterations (last
// end minus first start over the ranks), rates, wrong elements and `settings`. Errors: NOT_FOUND
// saying what to install when the library is not there; INVALID_ARGUMENT when ours refuses the
// combination; CANCELLED when interrupted; DEADLINE_EXCEEDED; otherwise what the process that
// failed first said.
absl::StatusOr<proto::Run> RunPeerJob(const PeerPrograms& programs, const Contestant& contestant,
                                      const PeerSetting& setting, const PeerJob& job);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_JOB_H_
