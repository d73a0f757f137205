// One rank of //benchmarks:train_bench --replay, which starts it; not for people.

#include <functional>
#include <memory>
#include <utility>

#include "absl/flags/flag.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/status_macros.h"
#include "benchmarks/ranks/join_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/replay/replay_cases.h"
#include "benchmarks/replay/replay_clock.h"
#include "benchmarks/replay/step_replay.h"
#include "join/backend_record.h"
#include "join/join.h"
#include "plan/codec.h"

namespace gradsync {
namespace {

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(const proto::RankSpec spec, SpecFromFlags(proto::RankSpec::kReplay));
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinFromFlags("train_bench", spec));
  ReplayOptions options;
  options.rank = join.meet.rank;
  options.spec = spec.replay();
  options.consistency = join.sync.job.consistency;
  options.timeout = join.meet.timeout;
  const int ranks = join.meet.world_size;
  GS_ASSIGN_OR_RETURN(const Plan plan, ReplayPlan(options.spec, join.sync.job, ranks));
  GS_ASSIGN_OR_RETURN(const std::function<absl::Status()> start, OpenStartLine(spec));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Join(std::move(join)));
  MonotonicReplayClock clock;
  absl::StatusOr<proto::WorkerMetrics> metrics =
      ReplaySteps(options, plan, start, &clock, &member->sync());
  if (!metrics.ok()) return member->Fail(metrics.status());
  RecordBackend(member->sync(), &*metrics);
  metrics->set_world_size(ranks);
  metrics->set_compression(CodecName(plan.codec()));
  metrics->set_bucket_bytes(static_cast<double>(options.spec.bucket_bytes()));
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), *metrics));
  member->Leave();
  return absl::OkStatus();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"replay_rank: started by train_bench."});
  return gradsync::RankExitCode("train_bench", gradsync::RunRank());
}
