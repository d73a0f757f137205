#include "benchmarks/ranks/join_main.h"

#include "absl/flags/flag.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/rank_spec.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/program/security_flags.h"
#include "gradsync/join/nccl_settings.h"
#include "gradsync/join/torch_adapters.h"

ABSL_FLAG(int, local_rank, -1, "as //worker has it");

namespace gradsync {

absl::StatusOr<JoinOptions> JoinFromFlags(absl::string_view run_id, const proto::RankSpec& spec) {
  const proto::RankSpec::Job& job = spec.job();
  JoinOptions options;
  options.meet = MeetFromFlags(run_id, spec);
  GS_ASSIGN_OR_RETURN(options.meet.credentials,
                      CredentialsFromFlags(options.meet.credentials.secret));
  options.meet.credentials.insecure = true;  // the network is the benchmark's
  GS_ASSIGN_OR_RETURN(options.sync.job, JobOfSpec(spec));
  options.sync.adapters = TorchAdapters();
  options.sync.servers = absl::GetFlag(FLAGS_servers);
  options.sync.server_weights.by_host = job.weights_by_host();
  options.sync.server_weights.weights.assign(job.server_weights().begin(),
                                             job.server_weights().end());
  options.device.device = job.device();
  const int local_rank = absl::GetFlag(FLAGS_local_rank);
  if (local_rank >= 0) options.device.local_rank = local_rank;
  options.nccl_settings = NcclSettings(EnvironmentVariable);
  GS_RETURN_IF_ERROR(CheckJoin(options));
  return options;
}

}  // namespace gradsync
