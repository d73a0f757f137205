// THE MAIN JOB: trains one model under each topology, with real processes on this machine, checks
// that all end with the same bits, and says which was faster. Copy and try:
//
//   bazel run //benchmarks:compare
//   bazel run //benchmarks:compare -- --topology=ps,ring --workers=2 --servers=1 --model=mlp
//   bazel run //benchmarks:compare -- --model=mlp --bandwidth=100mbit,400mbit --placement=colocated
//   bazel run //benchmarks:compare -- --data=cifar10:$PWD/cifar --steps=100 --update=worker,owner
//
// Every configuration is measured once in each of several rounds, in another order in each, and
// what is compared are ratios within a round (docs/compare/fairness.md).
//
// Exit codes: 0; 1 a job failed, or ended with other bits than it must; 2 bad flags or data, or no
// way to emulate a network that flags ask for, found before any job started; 128 + signal when
// interrupted.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/comparison/compare_prediction.h"
#include "benchmarks/comparison/compare_report.h"
#include "benchmarks/comparison/compare_rounds.h"
#include "benchmarks/comparison/default_comparison.h"
#include "benchmarks/comparison/html_report.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/curve.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/terminal.h"
#include "core/base/monotonic_time.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/gpu/open_gpu.h"
#include "core/program/program_main.h"
#include "tools/lab_flags.h"
#include "tools/subprocess.h"
#include "tools/worker_flags.h"
#include "worker/models/model_options.h"

ABSL_FLAG(std::vector<std::string>, topology, gradsync::CompareOptions().topologies,
          "topologies: some of ps, ring, local");
ABSL_FLAG(std::vector<std::string>, workers, gradsync::CompareOptions().workers,
          "numbers of workers; empty: 1,2, or with --mesh as many as each mesh has places");
ABSL_FLAG(std::vector<std::string>, servers, gradsync::CompareOptions().servers,
          "numbers of parameter servers, for ps");
ABSL_FLAG(
    std::vector<std::string>, placement, gradsync::CompareOptions().placements,
    "where servers are, with --bandwidth: some of dedicated (each on a host of its own), colocated "
    "(each on a worker's host), mixed (one beside each worker, and --servers dedicated ones)");
ABSL_FLAG(
    std::vector<std::string>, link, gradsync::CompareOptions().links,
    "links: some of auto, grpc, tcp, shm, gloo, nccl (the last two: ring only; nccl: on GPUs); "
    "empty: grpc,shm, with --device=cuda nccl too; grpc with --bandwidth");
ABSL_FLAG(
    std::string, device, "",
    "what all workers train on: cpu, cuda (the GPU of each one's local rank), cuda:N, or auto "
    "(cuda where build and machine have it); empty: cuda with --link=nccl, else cpu");
ABSL_FLAG(std::string, precision, gradsync::PrecisionName(gradsync::ComputeFlags().precision),
          "type in which convolutions and matrix products compute: fp32, bf16, or fp16 (GPU and "
          "--update=worker only)");
ABSL_FLAG(bool, channels_last, false,
          "keep images and weights of convolutions in channels-last memory format (NHWC)");
ABSL_FLAG(bool, tf32, false, "let GPUs compute fp32 convolutions and matrix products in TF32");
ABSL_FLAG(bool, cudnn_benchmark, false,
          "on GPUs: let cuDNN time its algorithms at the first step and take the fastest");
ABSL_FLAG(
    int, ranks_per_gpu, gradsync::CompareOptions().ranks_per_gpu,
    "with --device=cuda: number of workers that share a GPU; above 1 a test mode, in which times "
    "over NCCL mean nothing");
ABSL_FLAG(std::vector<std::string>, update, gradsync::CompareOptions().updates,
          "who runs the optimizer: worker, owner, or both");
ABSL_FLAG(std::vector<std::string>, zero, gradsync::CompareOptions().zeros,
          "what owners keep for all, as //worker has it: some of 0 to 3; from 1 on they update");
ABSL_FLAG(std::vector<std::string>, offload, gradsync::CompareOptions().offloads,
          "with --device=cuda, what owners on the host keep and do, as //worker has it: some of "
          "none, optimizer, parameters");
ABSL_FLAG(
    std::string, mesh, gradsync::MeshFlags().meshes,
    "how ranks are arranged, as data=2,pipeline=2, several with semicolons, each with as many "
    "workers as it has places; batches are then micro-batches");
ABSL_FLAG(std::vector<std::string>, pipeline_schedule, gradsync::MeshFlags().schedules,
          "with --mesh: some of naive, gpipe, 1f1b");
ABSL_FLAG(std::vector<std::string>, micro_batches, gradsync::MeshFlags().micro_batches,
          "with --mesh: numbers of micro-batches that make a step, each of --batch_size or, with "
          "--global_batch_size, parts of that");
ABSL_FLAG(
    std::string, split, gradsync::MeshFlags().splits,
    "with --mesh: the blocks before which stages begin, as 4,7, several with semicolons; auto: by "
    "the time that each block takes");
ABSL_FLAG(std::vector<std::string>, data_parallel, gradsync::CompareOptions().replicas,
          "numbers of replicas of the model in each worker's process, which share its batch out");
ABSL_FLAG(
    std::vector<std::string>, compression, gradsync::CompareOptions().compressions,
    "how gradients are compressed on the wire (grpc): some of none, fp16, bf16, topk:R (ps only)");
ABSL_FLAG(std::vector<std::string>, consistency, gradsync::CompareOptions().consistencies,
          "for whom a step waits: some of bsp, ssp:S, asp; bsp is taken where none of them can be, "
          "as in rings");
ABSL_FLAG(std::vector<std::string>, bandwidth, {"auto"},
          "what each host's link carries, each way, such as 100mbit,400mbit: every process runs on "
          "a host of an emulated network, one network for each; none: on this host alone; auto: "
          "250mbit,400mbit for the second part of the default comparison, otherwise none");
ABSL_FLAG(
    int, rounds, gradsync::CompareOptions().rounds,
    "number of rounds, in each of which every configuration is measured once, in another order "
    "each time; medians and intervals are over rounds");
ABSL_FLAG(std::string, model, gradsync::CompareOptions().model,
          absl::StrCat("model to train: ", gradsync::ListOfModels()));
ABSL_FLAG(std::string, stem, gradsync::CompareOptions().stem,
          "first convolution of a ResNet: imagenet (7x7) or cifar (3x3)");
ABSL_FLAG(std::string, data, gradsync::CompareOptions().data,
          "data to train on: synthetic, synthetic:PIXELS (images so high and wide; else 32), or "
          "cifar10:DIR");
ABSL_FLAG(int64_t, steps, gradsync::CompareOptions().steps, "steps of each job, warm-up included");
ABSL_FLAG(int64_t, warmup_steps, gradsync::CompareOptions().warmup_steps,
          "steps at the start that are trained but not measured");
ABSL_FLAG(int64_t, batch_size, gradsync::CompareOptions().batch_size,
          "samples per worker and step; 0: 32, unless --global_batch_size is given");
ABSL_FLAG(int64_t, global_batch_size, gradsync::CompareOptions().global_batch_size,
          "samples of all workers per step, instead of --batch_size (strong scaling); 0: by "
          "--batch_size");
ABSL_FLAG(int, threads, gradsync::CompareOptions().threads, "compute threads per worker");
ABSL_FLAG(double, lr, gradsync::CompareOptions().lr, "learning rate");
ABSL_FLAG(uint64_t, seed, gradsync::CompareOptions().seed,
          "seed of initial weights, order of samples and augmentation");
ABSL_FLAG(std::string, straggler, "",
          "who computes slower: RANK:FACTOR, or random:SEED:PROBABILITY:FACTOR");
ABSL_FLAG(absl::Duration, timeout, gradsync::CompareOptions().timeout,
          "longest wait for other processes, at the start and in a step");
ABSL_FLAG(std::string, out, "gradsync-report",
          "folder for compare.json, report.html and, with --bandwidth, step_profile.json; made if "
          "missing");
ABSL_FLAG(std::string, json, "", "another file for the records of compare.json");
ABSL_FLAG(std::string, worker_binary, "",
          "program that workers run; empty: the //worker of this build");
ABSL_FLAG(std::string, server_binary, "",
          "program that servers run; empty: the //ps_server of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "compare [flags] [-- worker flags]: trains one model under each topology and compares "
    "them.\n"
    "\n"
    "Without flags that say what to compare (others are --data, --rounds, --bandwidth, --lr, "
    "--seed, --timeout,\n"
    "--out, --json and the binaries) it makes the default comparison, in less than three minutes "
    "on "
    "two cores: ResNet-18\n"
    "with 2 workers on this machine alone, and then with 3 workers on emulated hosts, at 250 "
    "and 400 Mbit/s, as a\n"
    "ring, with 3 parameter servers beside the workers and with 3 on hosts of their own, "
    "measured beside predicted.\n"
    "Where networks cannot be emulated it shows the predictions alone. With any other flag "
    "every job takes the flags'\n"
    "values and defaults below, on this machine, or with --bandwidth on emulated hosts.";

constexpr int kBadInput = 2;

absl::StatusOr<CompareOptions> OptionsFromFlags(std::vector<std::string> worker_flags) {
  CompareOptions options;
  options.topologies = absl::GetFlag(FLAGS_topology);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.placements = absl::GetFlag(FLAGS_placement);
  options.links = absl::GetFlag(FLAGS_link);
  options.compute.device = absl::GetFlag(FLAGS_device);
  GS_ASSIGN_OR_RETURN(options.compute.precision, ParsePrecision(absl::GetFlag(FLAGS_precision)));
  options.compute.channels_last = absl::GetFlag(FLAGS_channels_last);
  options.compute.tf32 = absl::GetFlag(FLAGS_tf32);
  options.compute.cudnn_benchmark = absl::GetFlag(FLAGS_cudnn_benchmark);
  options.ranks_per_gpu = absl::GetFlag(FLAGS_ranks_per_gpu);
  options.updates = absl::GetFlag(FLAGS_update);
  options.zeros = absl::GetFlag(FLAGS_zero);
  options.offloads = absl::GetFlag(FLAGS_offload);
  options.mesh.meshes = absl::GetFlag(FLAGS_mesh);
  options.mesh.schedules = absl::GetFlag(FLAGS_pipeline_schedule);
  options.mesh.micro_batches = absl::GetFlag(FLAGS_micro_batches);
  options.mesh.splits = absl::GetFlag(FLAGS_split);
  options.replicas = absl::GetFlag(FLAGS_data_parallel);
  options.compressions = absl::GetFlag(FLAGS_compression);
  options.consistencies = absl::GetFlag(FLAGS_consistency);
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.model = absl::GetFlag(FLAGS_model);
  options.stem = absl::GetFlag(FLAGS_stem);
  options.data = UserData(absl::GetFlag(FLAGS_data));
  options.steps = absl::GetFlag(FLAGS_steps);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.global_batch_size = absl::GetFlag(FLAGS_global_batch_size);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.lr = absl::GetFlag(FLAGS_lr);
  options.seed = absl::GetFlag(FLAGS_seed);
  options.straggler = absl::GetFlag(FLAGS_straggler);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  options.worker_flags = std::move(worker_flags);
  return options;
}

struct Sweep {
  bool default_comparison = false;
  CompareOptions options;  // of both parts, but for what MakeDefaultComparison() sets
  std::vector<ComparisonPart> parts;
  JobPrograms job;
  std::string tcp_rank_binary;
  std::string train_bench;
  std::string report_tool;
  std::string out;
};

absl::StatusOr<std::vector<ComparisonPart>> ListParts(const CompareOptions& options,
                                                      bool default_comparison) {
  std::vector<CompareOptions> each = {options};
  if (default_comparison) each = MakeDefaultComparison(options);
  std::vector<ComparisonPart> parts;
  for (CompareOptions& of_part : each) {
    GS_RETURN_IF_ERROR(ResolveLinksAndDevice(CheckGpu, &of_part));
    GS_ASSIGN_OR_RETURN(std::vector<Configuration> configurations, ListConfigurations(of_part));
    parts.push_back({std::move(of_part), std::move(configurations)});
  }
  return parts;
}

absl::StatusOr<Sweep> PrepareSweep(const char* argv0, bool default_comparison,
                                   std::vector<std::string> worker_flags) {
  Sweep sweep;
  sweep.default_comparison = default_comparison;
  GS_ASSIGN_OR_RETURN(sweep.options, OptionsFromFlags(std::move(worker_flags)));
  GS_ASSIGN_OR_RETURN(sweep.options.bandwidths,
                      ResolveBandwidths(absl::GetFlag(FLAGS_bandwidth), default_comparison));
  if (sweep.options.bandwidths.empty()) GS_RETURN_IF_ERROR(CheckNoLab());
  GS_ASSIGN_OR_RETURN(sweep.parts, ListParts(sweep.options, default_comparison));
  sweep.job.rank_binary = UserPath(absl::GetFlag(FLAGS_worker_binary));
  sweep.job.server_binary = UserPath(absl::GetFlag(FLAGS_server_binary));
  if (sweep.job.rank_binary.empty()) {
    GS_ASSIGN_OR_RETURN(sweep.job.rank_binary, FindRunfile(argv0, "worker/worker"));
  }
  if (sweep.job.server_binary.empty()) {
    GS_ASSIGN_OR_RETURN(sweep.job.server_binary, FindRunfile(argv0, "ps_server/ps_server"));
  }
  for (const std::string& binary : {sweep.job.rank_binary, sweep.job.server_binary}) {
    if (access(binary.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat("expected a program, found none at ", binary));
    }
  }
  GS_ASSIGN_OR_RETURN(sweep.report_tool, FindRunfile(argv0, "tools/report/report"));
  GS_ASSIGN_OR_RETURN(sweep.tcp_rank_binary, FindRunfile(argv0, "benchmarks/tcp_flows_rank"));
  GS_ASSIGN_OR_RETURN(sweep.train_bench, FindRunfile(argv0, "benchmarks/train_bench"));
  sweep.job.interrupt = &InterruptSignal();
  sweep.job.environment = EnvironmentVariable;
  sweep.out = UserPath(absl::GetFlag(FLAGS_out));
  GS_RETURN_IF_ERROR(CheckFolderWritable("out", sweep.out));
  return sweep;
}

void PrintError(absl::string_view message) { gradsync::PrintError("compare", message); }

ProgressOptions ProgressOnStdout(std::vector<double> weights) {
  ProgressOptions options;
  options.weights = std::move(weights);
  options.terminal = isatty(STDOUT_FILENO) != 0;
  options.clock = MonotonicTime::Now;
  options.write = [](absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  return options;
}

// A comparison succeeds without its page, which can be made at any time.
void PrintReport(const absl::Status& written) {
  const std::string folder = absl::GetFlag(FLAGS_out);
  if (written.ok()) {
    std::printf("wrote %s/report.html\n", folder.c_str());
    return;
  }
  std::printf("no report.html: %s; then bazel run //tools:report -- %s/compare.json\n",
              std::string(written.message()).c_str(), folder.c_str());
}

int Finish(const Sweep& sweep, proto::RunRecords* records, int exit_code) {
  if (records->runs().empty()) return exit_code;
  SetScalingEfficiency(records);
  const std::string path = sweep.out + "/compare.json";
  absl::Status written = WriteJson(path, *records);
  written.Update(WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), *records));
  const Verdict verdict = JudgeRuns(*records);
  std::printf("\n%s\n", FormatRuns(*records).c_str());
  for (const std::string& table :
       {FormatCurves(*records), FormatBandwidths(*records, sweep.options.bandwidths)}) {
    if (!table.empty()) std::printf("%s\n", table.c_str());
  }
  std::printf("%s%s", verdict.text.c_str(),
              JudgePredictions(*records, sweep.options.bandwidths).c_str());
  size_t wanted = 0;
  for (const ComparisonPart& part : sweep.parts) wanted += part.configurations.size();
  const size_t missing = wanted - records->runs_size();
  if (missing > 0) {
    std::printf("  %zu of %zu configurations failed or did not run; see above\n", missing, wanted);
  }
  if (!written.ok()) {
    PrintError(written.message());
    return exit_code == 0 ? 1 : exit_code;
  }
  std::printf("wrote %s/compare.json\n", absl::GetFlag(FLAGS_out).c_str());
  PrintReport(WriteHtmlReport(sweep.report_tool, path, sweep.out + "/report.html"));
  return exit_code == 0 && !verdict.bits_agree ? 1 : exit_code;
}

// Those that the part needs.
absl::StatusOr<Networks> MakeNetworks(const Sweep& sweep, const ComparisonPart& part) {
  Networks networks;
  EmulatedNetworkOptions options;
  options.lab = LabFromFlags();
  for (const Configuration& c : part.configurations) {
    options.hosts = std::max(options.hosts, HostCount(c.job));
  }
  options.tcp_rank_binary = sweep.tcp_rank_binary;
  options.timeout = sweep.options.timeout;
  options.interrupt = &InterruptSignal();
  for (const std::string& bandwidth : part.options.bandwidths) {
    options.bandwidth = bandwidth;
    GS_ASSIGN_OR_RETURN(networks[bandwidth], EmulatedNetwork::Create(options));
  }
  return networks;
}

absl::Status Predict(const Sweep& sweep, const ComparisonPart& part, const Networks& networks,
                     proto::RunRecords* records) {
  if (part.options.compute.on_gpu()) {
    return absl::FailedPreconditionError("a step is recorded on the CPU alone");
  }
  EmulatedHosts hosts;
  hosts.cores = HostCores();
  for (const auto& [bandwidth, network] : networks) {
    hosts.rate_factors[bandwidth] = network->record().tcp_factor();
  }
  GS_ASSIGN_OR_RETURN(const proto::StepProfile profile,
                      RecordComparedStep(sweep.train_bench, part.options, part.configurations,
                                         sweep.out + "/step_profile.json"));
  GS_ASSIGN_OR_RETURN(std::vector<proto::Run> predictions,
                      PredictCompared(profile, part.options, part.configurations, hosts));
  for (proto::Run& run : predictions) *records->add_predictions() = std::move(run);
  return absl::OkStatus();
}

void PrintHead(const Sweep& sweep, const proto::Machine& machine) {
  std::printf("%s\n", FormatMachine(machine).c_str());
  for (const std::string& warning :
       {BuildModeWarning(machine), BusyWarning(BusyCores(absl::Milliseconds(500)))}) {
    if (!warning.empty()) std::printf("%s\n", warning.c_str());
  }
  for (const ComparisonPart& part : sweep.parts) {
    const CompareOptions& options = part.options;
    std::printf(
        "%s%s, %s, %s, %s%s, %d round%s of %lld steps (%lld warm-up), %d thread%s per worker\n",
        !sweep.default_comparison ? ""
        : part.on_networks()      ? "then on emulated hosts: "
                                  : "first on this machine alone: ",
        options.model.c_str(), absl::GetFlag(FLAGS_data).c_str(), options.compute.device.c_str(),
        PrecisionName(options.compute.precision).c_str(),
        options.compute.channels_last ? " channels-last" : "", options.rounds,
        options.rounds == 1 ? "" : "s", static_cast<long long>(options.steps),
        static_cast<long long>(options.warmup_steps), options.threads,
        options.threads == 1 ? "" : "s");
  }
}

// Makes the networks and predicts what will be measured on them, before anything else uses the
// cores. The default comparison goes on without networks; then the part that needed them is left
// out, and `records` says why. Errors: those of EmulatedNetwork::Create().
absl::StatusOr<Networks> PrepareNetworks(Sweep* sweep, proto::RunRecords* records) {
  const auto part = std::find_if(sweep->parts.begin(), sweep->parts.end(),
                                 [](const ComparisonPart& p) { return p.on_networks(); });
  if (part == sweep->parts.end()) return Networks();
  absl::StatusOr<Networks> networks = MakeNetworks(*sweep, *part);
  const bool refused = !networks.ok() && sweep->default_comparison &&
                       !absl::IsCancelled(networks.status()) && InterruptSignal() == 0;
  if (refused) {
    records->set_no_network(std::string(networks.status().message()));
    std::printf("no emulated hosts, so only predictions of them: %s\n",
                records->no_network().c_str());
    networks = Networks();
  }
  if (!networks.ok()) return networks;
  for (const auto& [bandwidth, network] : *networks) {
    *records->add_networks() = network->record();
    std::printf("%s\n", FormatNetwork(network->record()).c_str());
  }
  // A comparison succeeds without predictions.
  if (const absl::Status status = Predict(*sweep, *part, *networks, records); !status.ok()) {
    std::printf("no predictions: %s\n", std::string(status.message()).c_str());
  }
  if (refused) sweep->parts.erase(part);
  return networks;
}

int Compare(int argc, char** argv) {
  std::vector<std::string> worker_flags =
      ParseBenchmarkFlags(argc, argv, kUsage, FlagsBehindDashes());
  absl::StatusOr<Sweep> sweep =
      PrepareSweep(argv[0], AsksForDefault(argc, argv), std::move(worker_flags));
  if (!sweep.ok()) {
    PrintError(sweep.status().message());
    return kBadInput;
  }
  CatchInterrupts();
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine(CheckoutFolder());
  records.set_command(CommandLine("compare", argc, argv));
  const absl::Status writable = CheckWritable("json", UserPath(absl::GetFlag(FLAGS_json)));
  if (!writable.ok()) {
    PrintError(writable.message());
    return kBadInput;
  }
  PrintHead(*sweep, records.machine());
  const absl::StatusOr<Networks> networks = PrepareNetworks(&*sweep, &records);
  if (!networks.ok()) {
    PrintError(networks.status().message());
    return InterruptSignal() != 0 ? 128 + InterruptSignal() : kBadInput;
  }
  const std::vector<double> seconds =
      ExpectedSeconds(sweep->parts, records.predictions(), HostCores());
  const int exit_code = RunParts(sweep->parts, sweep->job, *networks, ProgressOnStdout(seconds),
                                 PrintError, &records);
  return Finish(*sweep, &records, exit_code);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::ExitCode("compare", gradsync::Compare(argc, argv));
}
