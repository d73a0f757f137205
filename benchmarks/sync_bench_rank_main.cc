// One rank of //benchmarks:sync_bench, which starts it; not for people.

#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "base/deadline.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/exchange_runner.h"
#include "benchmarks/ranks/join_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "join/backend_record.h"
#include "join/join.h"
#include "join/nccl_settings.h"
#include "join/open_device.h"
#include "plan/job_spec.h"

ABSL_FLAG(int64_t, bytes, 0, "of one exchange");
ABSL_FLAG(int64_t, bucket_bytes, 0, "of a bucket");
ABSL_FLAG(int64_t, chunk_bytes, 0, "of a chunk; 0: by bucket size and world size");
ABSL_FLAG(int, iterations, 1, "measured exchanges");
ABSL_FLAG(int, warmup, 0, "exchanges before them");

namespace gradsync {
namespace {

ExchangeOptions ExchangeFromFlags() {
  ExchangeOptions options;
  options.rank = absl::GetFlag(FLAGS_rank);
  options.world_size = absl::GetFlag(FLAGS_world_size);
  options.bytes = absl::GetFlag(FLAGS_bytes);
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  options.iterations = absl::GetFlag(FLAGS_iterations);
  options.warmup = absl::GetFlag(FLAGS_warmup);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  return options;
}

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinFromFlags("sync_bench"));
  ExchangeOptions options = ExchangeFromFlags();
  GS_RETURN_IF_ERROR(CheckJoin(join));
  options.codec = join.sync.job.codec;
  options.rounds_at_each_hop = join.sync.job.topology == Topology::kRing;
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<StartLine> line,
                      StartLine::Open(absl::GetFlag(FLAGS_start_line), options.world_size));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Member> member, Join(std::move(join)));
  const auto start = [&] { return line->Wait(Deadline::In(options.timeout)); };
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
  member->Leave();
  return absl::OkStatus();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"sync_bench_rank: started by sync_bench."});
  return gradsync::RankExitCode("sync_bench", gradsync::RunRank());
}
