// One rank of //benchmarks:sync_bench, which starts it; not for people.

#include <functional>
#include <memory>
#include <utility>

#include "absl/flags/flag.h"
#include "benchmarks/exchange/exchange_runner.h"
#include "benchmarks/ranks/join_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "core/program/flags.h"
#include "gradsync/join/backend_record.h"
#include "gradsync/join/join.h"
#include "gradsync/join/nccl_settings.h"
#include "gradsync/join/open_device.h"

namespace gradsync {
namespace {

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(const proto::RankSpec spec, SpecFromFlags(proto::RankSpec::kExchange));
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinFromFlags("sync_bench", spec));
  const proto::RankSpec::Exchange& told = spec.exchange();
  ExchangeOptions options;
  options.rank = join.meet.rank;
  options.world_size = join.meet.world_size;
  options.bytes = told.bytes();
  options.bucket_bytes = told.bucket_bytes();
  options.chunk_bytes = told.chunk_bytes();
  options.codec = join.sync.job.codec;
  options.rounds_at_each_hop = join.sync.job.topology == Topology::kRing;
  options.iterations = told.iterations();
  options.warmup = told.warmup();
  options.timeout = join.meet.timeout;
  GS_ASSIGN_OR_RETURN(const std::function<absl::Status()> start, OpenStartLine(spec));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Join(std::move(join)));
  absl::StatusOr<proto::ExchangeMetrics> metrics = RunExchanges(options, start, &member->sync());
  if (!metrics.ok()) return member->Fail(metrics.status());
  RecordBackend(member->sync(), &*metrics);
  const SyncOptions& ran = member->options();
  metrics->set_device(DescribeDevice(ran.gpu.get()));
  if (ran.nccl != nullptr) {
    metrics->set_nccl_version(NcclVersionName(ran.nccl->version()));
    metrics->set_nccl_asked(ran.nccl->algorithm());
  }
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), *metrics));
  return member->Leave();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"sync_bench_rank: started by sync_bench."});
  return gradsync::RankExitCode("sync_bench", gradsync::RunRank());
}
