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
#include "worker/nccl_settings.h"
#include "worker/open_device.h"
#include "worker/sync_factory.h"

// Set by RunLocalJob().
ABSL_FLAG(std::vector<std::string>, servers, {}, "parameter servers, host:port,...");
ABSL_FLAG(std::string, server_weights, "auto", "as //worker has it");

ABSL_FLAG(std::string, topology, "ring", "ring or ps");
ABSL_FLAG(std::string, link, "auto", "as //worker has it");
ABSL_FLAG(int, owners, 0, "as //worker has it");
ABSL_FLAG(std::string, update, "worker", "worker or owner");
ABSL_FLAG(std::string, compression, "none", "none, fp16 or bf16");
ABSL_FLAG(int, connections, 0, "per pair of peers; 0: the topology's default");
ABSL_FLAG(int64_t, bytes, 0, "of one exchange");
ABSL_FLAG(int64_t, bucket_bytes, 0, "of a bucket");
ABSL_FLAG(int64_t, chunk_bytes, 0, "of a chunk; 0: by bucket size and world size");
ABSL_FLAG(int, iterations, 1, "measured exchanges");
ABSL_FLAG(int, warmup, 0, "exchanges before them");

namespace gradsync {
namespace {

SyncOptions SyncFromFlags() {
  SyncOptions options;
  options.topology = absl::GetFlag(FLAGS_topology);
  options.link = absl::GetFlag(FLAGS_link);
  options.update = absl::GetFlag(FLAGS_update);
  options.compression = absl::GetFlag(FLAGS_compression);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.server_weights = absl::GetFlag(FLAGS_server_weights);
  options.connections = absl::GetFlag(FLAGS_connections);
  options.owners = absl::GetFlag(FLAGS_owners);
  return options;
}

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
  SyncOptions sync_options = SyncFromFlags();
  ExchangeOptions options = ExchangeFromFlags();
  GS_RETURN_IF_ERROR(ValidateSyncOptions(sync_options));
  GS_RETURN_IF_ERROR(OpenDeviceFromFlags(options.world_size, &sync_options));
  GS_ASSIGN_OR_RETURN(options.codec, ParseCodec(sync_options.compression));
  options.rounds_at_each_hop = sync_options.topology == "ring";
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
  sync.reset();
  metrics->set_link(sync_options.link);
  metrics->set_connections(ResolvedConnections(sync_options));
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
