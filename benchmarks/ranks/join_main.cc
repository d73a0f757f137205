#include "benchmarks/ranks/join_main.h"

#include <string>

#include "absl/flags/flag.h"
#include "base/program_main.h"
#include "base/status_macros.h"
#include "benchmarks/ranks/rank_main.h"
#include "join/nccl_settings.h"
#include "join/sync_flags.h"

ABSL_FLAG(std::string, device, "cpu", "as //worker has it");
ABSL_FLAG(int, local_rank, -1, "as //worker has it");

namespace gradsync {

absl::StatusOr<JoinOptions> JoinFromFlags(absl::string_view run_id) {
  JoinOptions options;
  options.meet = MeetFromFlags(run_id);
  GS_ASSIGN_OR_RETURN(options.sync, SyncFromFlags());
  options.device.device = absl::GetFlag(FLAGS_device);
  const int local_rank = absl::GetFlag(FLAGS_local_rank);
  if (local_rank >= 0) options.device.local_rank = local_rank;
  options.nccl_settings = NcclSettings(EnvironmentVariable);
  return options;
}

}  // namespace gradsync
