#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_JOB_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/exchange/exchange_job.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "benchmarks/peer_libraries/peer_contestants.h"
#include "benchmarks/peer_libraries/standing_peer.h"
#include "proto/run_record.pb.h"

namespace gradsync {

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
