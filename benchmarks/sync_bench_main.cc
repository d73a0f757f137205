// nccl-tests for GradientSync: how long exchanges of gradients take, with real processes on this
// machine, every result verified. Copy and try:
//
//   bazel run //benchmarks:sync_bench
//   bazel run //benchmarks:sync_bench -- --workers=2,4 --servers=1,2 --bytes=25MiB
//   bazel run //benchmarks:sync_bench -- --topology=ring -b 4K -e 128M -f 2 -n 20 -w 5
//   bazel run //benchmarks:sync_bench -- --bandwidth=400mbit --workers=4 --json=sync.json
//   bazel run //benchmarks:sync_bench -- --bandwidth=1gbit --placement=dedicated,colocated -n 10
//
// Each exchange over gRPC or TCP is measured under TLS too, right after, with --tls_cert and --tls_key
// (docs/operate/security.md says how to make them); the ratio is then the plain one's time over that of TLS:
//
//   bazel run //benchmarks:sync_bench -- --link=grpc --tls_cert=one.pem --tls_key=one.key --tls_ca=ca.pem
//
// On GPUs, after tools/setup --cuda; NCCL_ALGO=Ring in front makes NCCL's a ring:
//
//   bazel run --config=cuda //benchmarks:sync_bench -- --link=nccl,shm -b 4K -e 128M
//
// Exit codes: 0; 1 a result was wrong or a job failed; 2 bad flags or no way to emulate a network,
// found before any job started; 128 + signal when interrupted.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/exchange/exchange_job.h"
#include "benchmarks/exchange/sync_bench_options.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/measured_sweep_main.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/options/peers_folder.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/gpu/open_gpu.h"
#include "core/program/program_main.h"
#include "core/program/security_flags.h"
#include "tools/lab_flags.h"
#include "tools/subprocess.h"

ABSL_FLAG(std::vector<std::string>, topology, gradsync::SyncBenchOptions().topologies,
          "topologies: some of ring, ps");
ABSL_FLAG(std::vector<std::string>, link, gradsync::SyncBenchOptions().links,
          "links: some of auto, grpc, tcp, shm, gloo (ring only), nccl, cuda_ipc (on GPUs; servers "
          "are the first ranks)");
ABSL_FLAG(
    std::string, device, "",
    "where the buckets are: cpu, cuda (the GPU of each rank), cuda:N, or auto (cuda where build "
    "and machine have it); empty: cuda with --link=nccl or cuda_ipc, else cpu");
ABSL_FLAG(std::vector<std::string>, workers, gradsync::SyncBenchOptions().workers,
          "numbers of workers, each a rank without a model");
ABSL_FLAG(std::vector<std::string>, servers, gradsync::SyncBenchOptions().servers,
          "numbers of parameter servers, for ps");
ABSL_FLAG(
    std::vector<std::string>, placement, gradsync::SyncBenchOptions().placements,
    "where servers are, with --bandwidth: some of dedicated (each on a host of its own), colocated "
    "(each on a worker's host), mixed (one beside each worker, and --servers dedicated ones)");
ABSL_FLAG(std::string, server_weights, gradsync::SyncBenchOptions().server_weights,
          "each server's share of the bytes, as //worker has it: auto, equal, or w0,w1,...");
ABSL_FLAG(std::vector<std::string>, update, gradsync::SyncBenchOptions().updates,
          "who runs the optimizer: worker, owner, or both");
ABSL_FLAG(std::vector<std::string>, compression, gradsync::SyncBenchOptions().compressions,
          "how gradients are compressed on the wire (grpc, tcp): some of none, fp16, bf16");
ABSL_FLAG(std::vector<std::string>, bytes, {},
          "sizes of an exchange, such as 4KiB,25MiB,102.4MB; empty: 4KiB,256KiB,25MiB,102.4MB");
ABSL_FLAG(std::string, min_bytes, "",
          "first size of a sweep, such as 4KiB, instead of --bytes; empty: no sweep");
ABSL_FLAG(std::string, max_bytes, "", "last size of a sweep, such as 128MiB; empty: the first");
ABSL_FLAG(int64_t, factor, 0, "factor between the sizes of a sweep; 0: 2");
ABSL_FLAG(int, iterations, gradsync::SyncBenchOptions().iterations, "measured exchanges");
ABSL_FLAG(int, warmup, gradsync::SyncBenchOptions().warmup, "exchanges before the measured ones");
ABSL_FLAG(int, connections, 0,
          "connections of grpc or tcp per pair of peers; 0: the topology's default");
ABSL_FLAG(std::string, bucket_bytes, gradsync::SyncBenchOptions().bucket_bytes,
          "size of a bucket, such as 25MiB");
ABSL_FLAG(std::string, chunk_bytes, gradsync::SyncBenchOptions().chunk_bytes,
          "upper bound of a chunk, such as 1MiB; 0: by bucket size and ranks, 32KiB to 96KiB by "
          "--bytes and ranks with --bandwidth");
ABSL_FLAG(std::vector<std::string>, bandwidth, {},
          "what each host's link carries, each way, such as 400mbit: every process runs on a host "
          "of an emulated network, and what the cost model predicts is printed over what was "
          "measured; empty: on this host alone");
ABSL_FLAG(bool, emulate, true,
          "with --bandwidth: emulate the network; false: only predict, and measure on this host");
ABSL_FLAG(bool, tcp, true, "on an emulated network: also measure bare TCP with the same flows");
ABSL_FLAG(
    bool, nccl_tests, true,
    "with --link=nccl: also run nccl-tests' all_reduce_perf, which tools/setup --cuda --peers "
    "builds");
ABSL_FLAG(std::string, peers_folder, "",
          "folder in which tools/setup --peers installed; empty: ~/.cache/gradsync/peers, or under "
          "XDG_CACHE_HOME");
ABSL_FLAG(absl::Duration, timeout, gradsync::SyncBenchOptions().timeout,
          "longest wait for other processes, at the start and in a step");
ABSL_FLAG(std::string, json, "", "file for the records (proto/run_record.proto)");
ABSL_FLAG(std::string, server_binary, "",
          "program that servers run; empty: the //ps_server of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] = "sync_bench [flags]: measures exchanges of gradients without a model";
constexpr char kName[] = "sync_bench";
constexpr int kBadInput = 2;

struct Sweep {
  std::vector<SyncBenchCase> cases;
  ExchangeJobOptions job;
  std::string nccl_tests;  // path of all_reduce_perf; need not exist
};

SyncBenchOptions OptionsFromFlags() {
  SyncBenchOptions options;
  options.topologies = absl::GetFlag(FLAGS_topology);
  options.links = absl::GetFlag(FLAGS_link);
  options.device = absl::GetFlag(FLAGS_device);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.placements = absl::GetFlag(FLAGS_placement);
  options.updates = absl::GetFlag(FLAGS_update);
  options.compressions = absl::GetFlag(FLAGS_compression);
  options.bytes = absl::GetFlag(FLAGS_bytes);
  options.min_bytes = absl::GetFlag(FLAGS_min_bytes);
  options.max_bytes = absl::GetFlag(FLAGS_max_bytes);
  options.factor = absl::GetFlag(FLAGS_factor);
  options.iterations = absl::GetFlag(FLAGS_iterations);
  options.warmup = absl::GetFlag(FLAGS_warmup);
  options.connections = absl::GetFlag(FLAGS_connections);
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  options.bandwidths = absl::GetFlag(FLAGS_bandwidth);
  options.emulate = absl::GetFlag(FLAGS_emulate);
  options.server_weights = absl::GetFlag(FLAGS_server_weights);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  return options;
}

absl::StatusOr<Sweep> PrepareSweep(const char* argv0) {
  Sweep sweep;
  const SyncBenchOptions options = OptionsFromFlags();
  GS_ASSIGN_OR_RETURN(sweep.cases, ListCases(options));
  int most = 0;
  bool needs_server = false;
  std::vector<Link> links;
  for (const SyncBenchCase& c : sweep.cases) {
    most = std::max(most, c.job.workers);
    needs_server = needs_server || ServerProcesses(c.job) > 0;
    links.push_back(c.job.spec.link);
  }
  GS_ASSIGN_OR_RETURN(const std::string device,
                      ResolveDevice(options.device, links, most, CheckGpu));
  for (SyncBenchCase& c : sweep.cases) {
    c.device = device;
    GS_RETURN_IF_ERROR(CheckMemoryOf(c));
  }
  sweep.job.environment = EnvironmentVariable;
  const std::string peers = absl::GetFlag(FLAGS_peers_folder);
  sweep.nccl_tests =
      absl::StrCat(peers.empty() ? PeersFolder(EnvironmentVariable) : UserPath(peers),
                   "/programs/all_reduce_perf");
  GS_ASSIGN_OR_RETURN(sweep.job.rank_binary, FindRunfile(argv0, "benchmarks/sync_bench_rank"));
  GS_ASSIGN_OR_RETURN(sweep.job.tcp_rank_binary, FindRunfile(argv0, "benchmarks/tcp_flows_rank"));
  GS_RETURN_IF_ERROR(CredentialsFromFlags("").status());
  sweep.job.tls_flags = TlsFlagsGiven();
  sweep.job.interrupt = &InterruptSignal();
  sweep.job.server_binary = UserPath(absl::GetFlag(FLAGS_server_binary));
  if (sweep.job.server_binary.empty() && needs_server) {
    GS_ASSIGN_OR_RETURN(sweep.job.server_binary, FindRunfile(argv0, "ps_server/ps_server"));
  }
  return sweep;
}

void PrintAndKeep(proto::Run run, proto::RunRecords* records) {
  std::printf("%s", SyncBenchLine(run).c_str());
  std::fflush(stdout);
  *records->add_runs() = std::move(run);
}

// The measurement; beside it bare TCP where there is a network, and nccl-tests where NCCL is the
// link.
absl::Status RunOne(const Sweep& sweep, const SyncBenchCase& bench_case, BareTcp* tcp,
                    std::string* said, proto::RunRecords* records) {
  GS_ASSIGN_OR_RETURN(proto::Run run, RunExchangeJob(sweep.job, bench_case));
  absl::StatusOr<proto::Run> bare = absl::NotFoundError("not asked for");
  if (sweep.job.network != nullptr && absl::GetFlag(FLAGS_tcp)) {
    bare = tcp->MeasureBeside(bench_case, &run);
  }
  absl::StatusOr<proto::Run> nccl_tests = absl::CancelledError();
  if (ComparesWithNcclTests(bench_case) && absl::GetFlag(FLAGS_nccl_tests)) {
    nccl_tests = MeasureNcclTests(sweep.nccl_tests, bench_case, &InterruptSignal(), &run);
    // A peer that cannot run is no failure of the sweep, and is said once.
    if (!nccl_tests.ok() && !absl::IsCancelled(nccl_tests.status()) &&
        *said != nccl_tests.status().message()) {
      *said = std::string(nccl_tests.status().message());
      PrintError(kName, *said);
    }
  }
  absl::StatusOr<proto::Run> tls = absl::CancelledError();
  const bool frames = run.link() == LinkName(Link::kGrpc) || run.link() == LinkName(Link::kTcp);
  if (!sweep.job.tls_flags.empty() && frames) {
    tls = RunTlsBeside(sweep.job, bench_case, run);
    GS_RETURN_IF_ERROR(tls.status());
  }
  PrintAndKeep(std::move(run), records);
  if (tls.ok()) PrintAndKeep(*std::move(tls), records);
  if (nccl_tests.ok()) PrintAndKeep(*std::move(nccl_tests), records);
  if (bare.ok()) PrintAndKeep(*std::move(bare), records);
  if (InterruptSignal() != 0) return absl::CancelledError("interrupted");
  return absl::IsNotFound(bare.status()) ? absl::OkStatus() : bare.status();
}

int SyncBench(int argc, char** argv) {
  ParseFlagsOnly(kName, argc, argv, kUsage);
  absl::StatusOr<Sweep> sweep = PrepareSweep(argv[0]);
  if (!sweep.ok()) {
    PrintError(kName, sweep.status().message());
    return kBadInput;
  }
  BareTcp tcp(sweep->job);
  std::string said;
  MeasuredSweep measured;
  measured.program = kName;
  measured.command = CommandLine(kName, argc, argv);
  measured.json = UserPath(absl::GetFlag(FLAGS_json));
  const absl::StatusOr<std::string> padded = PaddedSizes(sweep->cases);
  if (!padded.ok()) {
    PrintError(kName, padded.status().message());
    return kBadInput;
  }
  if (!padded->empty()) {
    measured.head = absl::StrCat("# bytes are padded to multiples of 64: ", *padded, "\n");
  }
  absl::StrAppend(&measured.head, SyncBenchHead());
  for (const SyncBenchCase& bench_case : sweep->cases) measured.jobs.push_back(bench_case.job);
  measured.lab = LabFromFlags();
  measured.tcp_rank_binary = sweep->job.tcp_rank_binary;
  measured.timeout = absl::GetFlag(FLAGS_timeout);
  measured.describe = [&](size_t i) { return Describe(sweep->cases[i]); };
  measured.measure = [&](size_t i, const EmulatedNetwork* network, proto::RunRecords* records) {
    sweep->job.network = network;
    return RunOne(*sweep, sweep->cases[i], &tcp, &said, records);
  };
  return RunMeasuredSweep(measured);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::ExitCode("sync_bench", gradsync::SyncBench(argc, argv));
}
