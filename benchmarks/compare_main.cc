// THE MAIN JOB: trains one model under each topology, with real processes on this machine, checks
// that all end with the same bits, and says which was faster. Copy and try:
//
//   bazel run //benchmarks:compare
//   bazel run //benchmarks:compare -- --topologies=ps,ring --workers=2 --servers=1 --model=mlp
//   bazel run //benchmarks:compare -- --bandwidth=400mbit --placement=dedicated,colocated
//   --model=mlp bazel run //benchmarks:compare -- --data=cifar10:$PWD/cifar --steps=100
//   --update=worker,owner
//
// Exit codes: 0; 1 a job failed, or ended with other bits than it must; 2 bad flags or data, or no
// way to emulate a network, found before any job started; 128 + signal when interrupted.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "base/flags.h"
#include "base/monotonic_time.h"
#include "base/status_macros.h"
#include "base/write_file.h"
#include "benchmarks/comparison/compare_options.h"
#include "benchmarks/comparison/compare_prediction.h"
#include "benchmarks/comparison/compare_report.h"
#include "benchmarks/comparison/training_job.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/curve_report.h"
#include "benchmarks/records/html_report.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/progress.h"
#include "benchmarks/records/proto_json.h"
#include "gpu/open_gpu.h"
#include "tools/runfiles.h"

ABSL_FLAG(std::vector<std::string>, topologies, gradsync::CompareOptions().topologies,
          "some of ps, ring, local");
ABSL_FLAG(std::vector<std::string>, workers, gradsync::CompareOptions().workers,
          "numbers of workers");
ABSL_FLAG(std::vector<std::string>, servers, gradsync::CompareOptions().servers,
          "numbers of parameter servers, for ps");
ABSL_FLAG(
    std::vector<std::string>, placement, gradsync::CompareOptions().placements,
    "of servers, with --bandwidth: some of dedicated (each on a host of its own), colocated "
    "(each on a worker's host), mixed (one beside each worker, and --servers dedicated ones)");
ABSL_FLAG(std::vector<std::string>, links, gradsync::CompareOptions().links,
          "some of auto, grpc, shm, gloo, nccl (the last two: ring only; nccl: on GPUs); default: "
          "grpc,shm, with --device=cuda nccl too; grpc with --bandwidth");
ABSL_FLAG(
    std::string, device, "",
    "what all workers train on: cpu, cuda (the GPU of each one's local rank), cuda:N, or auto "
    "(cuda where build and machine have it); default: cuda with --links=nccl, else cpu");
ABSL_FLAG(
    std::string, precision, gradsync::ComputeFlags().precision,
    "of convolutions and matrix products: fp32, bf16, or fp16 (GPU and --update=worker only)");
ABSL_FLAG(bool, channels_last, false,
          "images and weights of convolutions in channels-last memory format (NHWC)");
ABSL_FLAG(bool, tf32, false, "let GPUs compute fp32 convolutions and matrix products in TF32");
ABSL_FLAG(bool, cudnn_benchmark, false,
          "let cuDNN time its algorithms at the first step and take the fastest, on GPUs");
ABSL_FLAG(
    int, ranks_per_gpu, gradsync::CompareOptions().ranks_per_gpu,
    "with --device=cuda: so many workers share a GPU; above 1 a test mode, in which times over "
    "NCCL mean nothing");
ABSL_FLAG(std::vector<std::string>, update, gradsync::CompareOptions().updates,
          "who runs the optimizer: worker, owner, or both");
ABSL_FLAG(std::vector<std::string>, compression, gradsync::CompareOptions().compressions,
          "of gradients on the wire (grpc): some of none, fp16, bf16, topk:R (ps only)");
ABSL_FLAG(std::vector<std::string>, consistency, gradsync::CompareOptions().consistencies,
          "some of bsp, ssp:S, asp; rings and update at the worker have bsp only");
ABSL_FLAG(std::string, bandwidth, "",
          "of each host's link, each way, such as 400mbit: runs every process on a host of an "
          "emulated network");
ABSL_FLAG(std::string, model, gradsync::CompareOptions().model, "resnet18, resnet50 or mlp");
ABSL_FLAG(std::string, stem, gradsync::CompareOptions().stem,
          "of a ResNet: imagenet (7x7) or cifar (3x3)");
ABSL_FLAG(std::string, data, gradsync::CompareOptions().data,
          "synthetic, synthetic:PIXELS (images so high and wide; else 32), or cifar10:DIR");
ABSL_FLAG(int64_t, steps, gradsync::CompareOptions().steps, "steps of each job, warm-up included");
ABSL_FLAG(int64_t, warmup_steps, gradsync::CompareOptions().warmup_steps,
          "steps at the start that are trained but not measured");
ABSL_FLAG(int64_t, batch_size, gradsync::CompareOptions().batch_size,
          "samples per worker and step; 0: 32, unless --global_batch_size is given");
ABSL_FLAG(int64_t, global_batch_size, gradsync::CompareOptions().global_batch_size,
          "instead: samples of all workers per step (strong scaling)");
ABSL_FLAG(int, threads, gradsync::CompareOptions().threads, "compute threads per worker");
ABSL_FLAG(double, lr, gradsync::CompareOptions().lr, "learning rate");
ABSL_FLAG(uint64_t, seed, gradsync::CompareOptions().seed,
          "of initial weights, order of samples and augmentation");
ABSL_FLAG(std::string, straggler, "",
          "who computes slower: RANK:FACTOR, or random:SEED:PROBABILITY:FACTOR");
ABSL_FLAG(absl::Duration, timeout, gradsync::CompareOptions().timeout,
          "a process that is silent for longer is lost");
ABSL_FLAG(std::string, out, "gradsync-report",
          "folder for compare.json, report.html and, with --bandwidth, step_profile.json; made if "
          "missing");
ABSL_FLAG(std::string, worker_binary, "", "default: the //worker of this build");
ABSL_FLAG(std::string, server_binary, "", "default: the //ps_server of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "compare [flags] [-- worker flags]: trains one model under each topology and compares them";

constexpr int kBadInput = 2;

std::atomic<int> interrupt_signal{0};

void HandleSignal(int signal) { interrupt_signal = signal; }

// `bazel run` starts programs elsewhere, but a user's paths are relative to where he was.
std::string UserPath(const std::string& path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  return ResolvePath(path, directory == nullptr ? "" : directory);
}

std::string UserData(const std::string& data) {
  absl::string_view folder = data;
  if (!absl::ConsumePrefix(&folder, "cifar10:") || folder.empty()) return data;
  return absl::StrCat("cifar10:", UserPath(std::string(folder)));
}

CompareOptions OptionsFromFlags(std::vector<std::string> worker_flags) {
  CompareOptions options;
  options.topologies = absl::GetFlag(FLAGS_topologies);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.placements = absl::GetFlag(FLAGS_placement);
  options.links = absl::GetFlag(FLAGS_links);
  options.compute.device = absl::GetFlag(FLAGS_device);
  options.compute.precision = absl::GetFlag(FLAGS_precision);
  options.compute.channels_last = absl::GetFlag(FLAGS_channels_last);
  options.compute.tf32 = absl::GetFlag(FLAGS_tf32);
  options.compute.cudnn_benchmark = absl::GetFlag(FLAGS_cudnn_benchmark);
  options.ranks_per_gpu = absl::GetFlag(FLAGS_ranks_per_gpu);
  options.updates = absl::GetFlag(FLAGS_update);
  options.compressions = absl::GetFlag(FLAGS_compression);
  options.consistencies = absl::GetFlag(FLAGS_consistency);
  options.bandwidth = absl::GetFlag(FLAGS_bandwidth);
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

// The folder, existing and writable. Errors: INVALID_ARGUMENT naming --out.
absl::StatusOr<std::string> OpenOutFolder() {
  const std::string folder = UserPath(absl::GetFlag(FLAGS_out));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (!error && access(folder.c_str(), W_OK) != 0) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error) return folder;
  return absl::InvalidArgumentError(
      absl::StrCat("--out: expected a folder that can be written, found \"",
                   absl::GetFlag(FLAGS_out), "\": ", error.message()));
}

struct Sweep {
  CompareOptions options;
  std::vector<Configuration> configurations;
  TrainingJobOptions job;
  std::string tcp_rank_binary;
  std::string train_bench;
  std::string report_tool;
  std::string out;
};

absl::StatusOr<Sweep> PrepareSweep(const char* argv0, std::vector<std::string> worker_flags) {
  Sweep sweep;
  sweep.options = OptionsFromFlags(std::move(worker_flags));
  GS_RETURN_IF_ERROR(ResolveLinksAndDevice(CheckGpu, &sweep.options));
  GS_ASSIGN_OR_RETURN(sweep.configurations, ListConfigurations(sweep.options));
  sweep.job.worker_binary = UserPath(absl::GetFlag(FLAGS_worker_binary));
  sweep.job.server_binary = UserPath(absl::GetFlag(FLAGS_server_binary));
  if (sweep.job.worker_binary.empty()) {
    GS_ASSIGN_OR_RETURN(sweep.job.worker_binary, FindRunfile(argv0, "worker/worker"));
  }
  if (sweep.job.server_binary.empty()) {
    GS_ASSIGN_OR_RETURN(sweep.job.server_binary, FindRunfile(argv0, "ps_server/ps_server"));
  }
  for (const std::string& binary : {sweep.job.worker_binary, sweep.job.server_binary}) {
    if (access(binary.c_str(), X_OK) != 0) {
      return absl::NotFoundError(absl::StrCat("expected a program, found none at ", binary));
    }
  }
  GS_ASSIGN_OR_RETURN(sweep.report_tool, FindRunfile(argv0, "tools/report/report"));
  GS_ASSIGN_OR_RETURN(sweep.tcp_rank_binary, FindRunfile(argv0, "benchmarks/tcp_flows_rank"));
  GS_ASSIGN_OR_RETURN(sweep.train_bench, FindRunfile(argv0, "benchmarks/train_bench"));
  sweep.job.interrupt = &interrupt_signal;
  sweep.job.environment = [](absl::string_view name) {
    const char* value = std::getenv(std::string(name).c_str());
    return value == nullptr ? absl::nullopt : absl::optional<std::string>(value);
  };
  GS_ASSIGN_OR_RETURN(sweep.out, OpenOutFolder());
  return sweep;
}

// Workers beyond the cores take turns on them.
std::vector<double> Weights(const Sweep& sweep) {
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  std::vector<double> weights;
  for (const Configuration& configuration : sweep.configurations) {
    const double turns = std::max(1.0, configuration.workers * sweep.options.threads / cores);
    weights.push_back(turns * static_cast<double>(configuration.batch_size));
  }
  return weights;
}

void PrintError(absl::string_view message) {
  std::fprintf(stderr, "compare: %.*s\n", static_cast<int>(message.size()), message.data());
}

ProgressOptions ProgressOnStdout(const Sweep& sweep) {
  ProgressOptions options;
  options.weights = Weights(sweep);
  options.terminal = isatty(STDOUT_FILENO) != 0;
  options.clock = MonotonicTime::Now;
  options.write = [](absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  return options;
}

// Adds what succeeds to `records`; returns the exit code so far.
int RunAll(const Sweep& sweep, proto::RunRecords* records) {
  Progress progress(ProgressOnStdout(sweep));
  int exit_code = 0;
  for (const Configuration& configuration : sweep.configurations) {
    progress.Start(Describe(configuration));
    absl::StatusOr<proto::Run> run =
        RunTrainingJob(sweep.job, sweep.options, configuration,
                       [&progress](int64_t step, int64_t steps) { progress.Step(step, steps); });
    if (run.ok()) {
      progress.Finish(absl::StrFormat("%.1f samples/s, %.1f ms per step, loss %.4f",
                                      run->samples_per_s(), run->step_ms_p50(), run->final_loss()));
      *records->add_runs() = *std::move(run);
      continue;
    }
    progress.Finish("failed");
    PrintError(absl::StrCat(Describe(configuration), ": ", run.status().message()));
    if (run.status().code() == absl::StatusCode::kCancelled) return 128 + interrupt_signal;
    if (run.status().code() == absl::StatusCode::kInvalidArgument) return kBadInput;
    exit_code = 1;
  }
  return exit_code;
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
  const absl::Status written = WriteJson(path, *records);
  const Verdict verdict = JudgeRuns(*records);
  const std::string curves = FormatCurves(*records);
  std::printf("\n%s\n%s%s%s", FormatRuns(*records).c_str(), curves.c_str(),
              curves.empty() ? "" : "\n", verdict.text.c_str());
  const size_t missing = sweep.configurations.size() - records->runs_size();
  if (missing > 0) {
    std::printf("  %zu of %zu jobs failed or did not run; see above\n", missing,
                sweep.configurations.size());
  }
  if (!written.ok()) {
    PrintError(written.message());
    return exit_code == 0 ? 1 : exit_code;
  }
  std::printf("wrote %s/compare.json\n", absl::GetFlag(FLAGS_out).c_str());
  PrintReport(WriteHtmlReport(sweep.report_tool, path, sweep.out + "/report.html"));
  return exit_code == 0 && !verdict.bits_agree ? 1 : exit_code;
}

// Null without --bandwidth.
absl::StatusOr<std::unique_ptr<EmulatedNetwork>> MakeNetwork(const Sweep& sweep) {
  EmulatedNetworkOptions options;
  options.bandwidth = sweep.options.bandwidth;
  if (options.bandwidth.empty()) return std::unique_ptr<EmulatedNetwork>();
  for (const Configuration& c : sweep.configurations) {
    options.hosts = std::max(options.hosts, HostCount(c.placement, c.workers, c.servers));
  }
  options.tcp_rank_binary = sweep.tcp_rank_binary;
  options.timeout = sweep.options.timeout;
  options.interrupt = &interrupt_signal;
  return EmulatedNetwork::Create(options);
}

// A comparison succeeds without predictions.
void AddPredictions(const Sweep& sweep, double tcp_factor, proto::RunRecords* records) {
  if (sweep.options.compute.on_gpu()) {
    std::printf("no predictions: a step is recorded on the CPU alone\n");
    return;
  }
  LinkConstants constants;
  if (tcp_factor > 0) constants.rate_factor = tcp_factor;
  absl::StatusOr<std::vector<proto::Run>> predictions = std::vector<proto::Run>();
  const absl::StatusOr<proto::StepProfile> profile = RecordComparedStep(
      sweep.train_bench, sweep.options, sweep.configurations, sweep.out + "/step_profile.json");
  if (profile.ok()) {
    predictions = PredictCompared(*profile, sweep.options, sweep.configurations, constants);
  } else {
    predictions = profile.status();
  }
  if (!predictions.ok()) {
    std::printf("no predictions: %s\n", std::string(predictions.status().message()).c_str());
    return;
  }
  for (proto::Run& run : *predictions) *records->add_predictions() = std::move(run);
}

int Compare(int argc, char** argv) {
  FlagOptions flag_options;
  flag_options.usage = kUsage;
  flag_options.aliases = {{"topology", "topologies"},
                          {"worker", "workers"},
                          {"server", "servers"},
                          {"placements", "placement"},
                          {"link", "links"},
                          {"updates", "update"},
                          {"models", "model"},
                          {"bandwidths", "bandwidth"},
                          {"compressions", "compression"},
                          {"consistencies", "consistency"}};
  absl::StatusOr<Sweep> sweep = PrepareSweep(argv[0], ParseFlagsOrExit(argc, argv, flag_options));
  if (!sweep.ok()) {
    PrintError(sweep.status().message());
    return kBadInput;
  }
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, HandleSignal);
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine();
  records.set_command(CommandLine("compare", argc, argv));
  std::printf("%s\n", FormatMachine(records.machine()).c_str());
  for (const std::string& warning :
       {BuildModeWarning(records.machine()), BusyWarning(BusyCores(absl::Milliseconds(500)))}) {
    if (!warning.empty()) std::printf("%s\n", warning.c_str());
  }
  const CompareOptions& options = sweep->options;
  std::printf("%s, %s, %s, %s%s, %lld steps (%lld warm-up), %d thread%s per worker\n",
              options.model.c_str(), absl::GetFlag(FLAGS_data).c_str(),
              options.compute.device.c_str(), options.compute.precision.c_str(),
              options.compute.channels_last ? " channels-last" : "",
              static_cast<long long>(options.steps), static_cast<long long>(options.warmup_steps),
              options.threads, options.threads == 1 ? "" : "s");
  const absl::StatusOr<std::unique_ptr<EmulatedNetwork>> network = MakeNetwork(*sweep);
  if (!network.ok()) {
    PrintError(network.status().message());
    return interrupt_signal != 0 ? 128 + interrupt_signal : kBadInput;
  }
  if (*network != nullptr) {
    sweep->job.network = network->get();
    *records.add_networks() = (*network)->record();
    std::printf("%s\n", FormatNetwork((*network)->record()).c_str());
    AddPredictions(*sweep, (*network)->record().tcp_factor(), &records);
  }
  const int exit_code = RunAll(*sweep, &records);
  return Finish(*sweep, &records, exit_code);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) { return gradsync::Compare(argc, argv); }
