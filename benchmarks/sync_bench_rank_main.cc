// One rank of //benchmarks:sync_bench, which starts it; not for people.

#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "base/deadline.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/exchange_runner.h"
#include "benchmarks/ranks/abort_group.h"
#include "benchmarks/ranks/meet_ranks.h"
#include "benchmarks/ranks/rank_device_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "links/grpc_store.h"
#include "worker/backend_record.h"
#include "worker/nccl_settings.h"
#include "worker/open_device.h"
#include "worker/sync_factory.h"
#include "worker/sync_flags.h"

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
  GS_ASSIGN_OR_RETURN(SyncOptions sync_options, SyncFromFlags());
  ExchangeOptions options = ExchangeFromFlags();
  GS_RETURN_IF_ERROR(ValidateSyncOptions(sync_options));
  GS_RETURN_IF_ERROR(OpenDeviceFromFlags(options.world_size, &sync_options));
  options.codec = sync_options.job.codec;
  options.rounds_at_each_hop = sync_options.job.topology == Topology::kRing;
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<StartLine> line,
                      StartLine::Open(absl::GetFlag(FLAGS_start_line), options.world_size));
  std::unique_ptr<GrpcStoreServer> store_server;
  GS_ASSIGN_OR_RETURN(const WorkerGroup group,
                      MeetRanks(MeetFromFlags("sync_bench"), &store_server));
  GS_RETURN_IF_ERROR(ResolveByHosts(group, &sync_options));
  GS_ASSIGN_OR_RETURN(std::unique_ptr<GradientSync> sync, CreateGradientSync(sync_options, group));
  const auto start = [&] { return line->Wait(Deadline::In(options.timeout)); };
  absl::StatusOr<proto::ExchangeMetrics> metrics = RunExchanges(options, start, sync.get());
  if (!metrics.ok()) return AbortGroup(*sync, metrics.status());
  RecordBackend(*sync, &*metrics);
  sync.reset();
  metrics->set_device(DescribeDevice(sync_options.gpu.get()));
  if (sync_options.nccl != nullptr) {
    metrics->set_nccl_version(NcclVersionName(sync_options.nccl->version()));
    metrics->set_nccl_asked(sync_options.nccl->algorithm());
  }
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), *metrics));
  return start();  // the store goes with rank 0
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"sync_bench_rank: started by sync_bench."});
  return gradsync::RankExitCode("sync_bench", gradsync::RunRank());
}
