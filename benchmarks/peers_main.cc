// Other libraries beside ours, in turns within one run. Copy and try:
//
//   bazel run //benchmarks:peers -- --json=peers.json
//   bazel run //benchmarks:peers -- --workers=2,4 --bytes=25MiB,102.4MB --rounds=9
//   bazel run //benchmarks:peers -- --train --model=resnet18 --batch_size=128
//   bazel run //benchmarks:peers -- --train --model=resnet18 --batch_size=64 --workers=2
//
// Without --train: the same exchange of gradients by gradsync's topologies, by the allreduce of
// Gloo, MPICH, OpenMPI, Intel MPI and oneCCL, by hand in MPI's shared memory, by the parameter
// servers of TensorFlow (those that `tools/setup --peers` installed), and by what bounds them: bare
// gRPC and TCP streams, memory copy.
//
// --train: gradsync beside Python PyTorch, with one rank; with more, the ring over shared memory
// beside as many processes that do not synchronise, and beside PyTorch DDP as a user writes it and
// at its best (peer_training.h). Python PyTorch is Debian's python3-torch and python3-torchvision,
// the same LibTorch. On GPUs ours is the ring over NCCL, theirs DDP over NCCL, compiled and as CUDA
// graphs too, by a Python that has torch and torchvision for them; and what goes through the host
// beside PyTorch over Gloo:
//
//   bazel run --config=cuda //benchmarks:peers -- --train --device=cuda --python=$(which python3) --model=resnet50 --pixels=224 --batch_size=128 --precision=bf16 --channels_last --steps_per_round=20
//   bazel run --config=cuda //benchmarks:peers -- --train --device=cuda --python=$(which python3) --workers=2 --ranks_per_gpu=2 --topology=ring,ps --link=shm --pytorch=gloo
//
// Exit codes: 0, also when a peer could not run; 1 a result was wrong or one of ours failed; 2 bad
// flags; 128 + signal when interrupted.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/compute_flags.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/job_sweep.h"
#include "benchmarks/options/peers_folder.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/peer_libraries/peer_exchange.h"
#include "benchmarks/peer_libraries/peer_report.h"
#include "benchmarks/peer_libraries/peer_training.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/gpu/open_gpu.h"
#include "core/program/byte_sizes.h"
#include "core/program/program_main.h"
#include "tools/subprocess.h"

ABSL_FLAG(bool, train, false, "compare training with PyTorch's instead of exchanges");
ABSL_FLAG(int, rounds, 0, "turns of each contestant; 0: 9, with --train 15");
ABSL_FLAG(
    std::vector<std::string>, workers, {},
    "numbers of processes of each contestant, such as 2,4, with --train one number; empty: 2, "
    "with --train 1");
ABSL_FLAG(std::string, json, "", "file for the records (proto/run_record.proto)");

// With --train.
ABSL_FLAG(std::string, model, "resnet18", "with --train: model to train, resnet18 or resnet50");
ABSL_FLAG(int, batch_size, 128, "with --train: samples per rank and step");
ABSL_FLAG(int, threads, 0,
          "with --train: compute threads of each rank, on both sides; 0: the cores of this machine "
          "shared out among the ranks, at least 1");
ABSL_FLAG(std::vector<std::string>, bucket_bytes, {},
          "with --train: upper bounds of a bucket, such as 1MiB,25MiB, with one contestant of ours "
          "for each; empty: one contestant");
ABSL_FLAG(int, steps_per_round, 3, "with --train: steps in a turn");
ABSL_FLAG(
    std::string, device, "cpu",
    "with --train: what both sides train on: cpu, cuda (the GPU of each rank's number), cuda:N "
    "or auto");
ABSL_FLAG(std::string, precision, gradsync::PrecisionName(gradsync::ComputeFlags().precision),
          "with --train: type in which convolutions and matrix products compute on both sides: "
          "fp32, bf16 or fp16");
ABSL_FLAG(bool, channels_last, false,
          "with --train: keep images and weights of convolutions in channels-last memory format "
          "(NHWC), both sides");
ABSL_FLAG(bool, tf32, false, "with --train: let GPUs compute fp32 in TF32, both sides");
ABSL_FLAG(int, pixels, gradsync::PeerTrainingOptions().pixels,
          "with --train: height and width of the images in pixels, an even number from 8 to 1024");
ABSL_FLAG(bool, cudnn_benchmark, true,
          "with --train: let cuDNN try its algorithms on GPUs, both sides");
ABSL_FLAG(int, ranks_per_gpu, gradsync::PeerTrainingOptions().ranks_per_gpu,
          "with --train --device=cuda: number of ranks that share a GPU; above 1 a test mode, in "
          "which times over NCCL mean nothing");
ABSL_FLAG(
    int, loader_threads, gradsync::PeerTrainingOptions().loader_threads,
    "with --train: threads with which each of our ranks makes batches; 0: as //worker has it");
ABSL_FLAG(std::vector<std::string>, topology, {"ring"},
          "with --train, topologies of ours: some of ring, ps (each rank is a server, too)");
ABSL_FLAG(std::vector<std::string>, link, {},
          "with --train, links of ours: some of nccl (on GPUs, ring only), shm, grpc, tcp; empty: "
          "nccl on GPUs, else shm");
ABSL_FLAG(std::vector<std::string>, pytorch, gradsync::PeerTrainingOptions().pytorch,
          "with --train, PyTorch's rows: some of best, default, compiled, graphs, compiled_graphs, "
          "gloo (all but the first two on GPUs); empty: all, gloo where one of ours goes through "
          "the host");
ABSL_FLAG(
    absl::Duration, peer_timeout, gradsync::PeerTrainingOptions().peer_timeout,
    "with --train: how long a row of PyTorch's may take to be ready, or for a turn, before it "
    "is left out");
ABSL_FLAG(std::string, python, "/usr/bin/python3",
          "with --train: path of the Python that has torch and torchvision");

// Without.
ABSL_FLAG(std::vector<std::string>, bytes, gradsync::PeerExchangeOptions().bytes,
          "sizes of an exchange, such as 4KiB,25MiB,102.4MB");
ABSL_FLAG(
    std::vector<std::string>, contestants, {},
    "who takes part: some of ring/shm, ps/shm, ring/grpc, ps/grpc, ring/tcp, ps/tcp, gloo, mpich, "
    "openmpi, impi, oneccl, mpich_window, openmpi_window, impi_window, tensorflow, memcpy, "
    "tcp_stream, "
    "grpc_stream/ring, grpc_stream/ps; empty: all");
ABSL_FLAG(int, iterations, gradsync::PeerExchangeOptions().job.exchange.iterations,
          "measured exchanges of each contestant in a round, which counts with their median; 0: by "
          "size, 500 up to 64 KiB (50 where ranks share cores), 5 from 6.4 MiB on");
ABSL_FLAG(int, warmup, gradsync::PeerExchangeOptions().job.exchange.warmup,
          "exchanges before the measured ones; -1: a tenth of those, at least 2");
ABSL_FLAG(bool, peer_huge_pages, gradsync::PeerExchangeOptions().job.huge_pages,
          "give the other libraries buffers of huge pages, which tensors usually do not have; ours "
          "have none");
ABSL_FLAG(absl::Duration, timeout, gradsync::PeerExchangeOptions().job.exchange.timeout,
          "how long a job may take before it has failed");
ABSL_FLAG(std::string, peers_folder, "",
          "folder in which tools/setup --peers installed; empty: ~/.cache/gradsync/peers, or under "
          "XDG_CACHE_HOME");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "peers [flags]: the same exchange by gradsync and by other libraries, in turns; with --train, "
    "the same training.";
constexpr int kBadInput = 2;

void PrintError(absl::string_view message) { gradsync::PrintError("peers", message); }

absl::StatusOr<PeerPrograms> FindPrograms(const std::string& argv0) {
  PeerPrograms programs;
  GS_ASSIGN_OR_RETURN(programs.rank_binary, FindRunfile(argv0, "benchmarks/sync_bench_rank"));
  GS_ASSIGN_OR_RETURN(programs.grpc_stream_rank, FindRunfile(argv0, "benchmarks/grpc_stream_rank"));
  GS_ASSIGN_OR_RETURN(programs.server_binary, FindRunfile(argv0, "ps_server/ps_server"));
  GS_ASSIGN_OR_RETURN(const std::string memcpy,
                      FindRunfile(argv0, "benchmarks/peer_libraries/peer_memcpy"));
  programs.built_folder = std::filesystem::path(memcpy).parent_path().string();
  GS_ASSIGN_OR_RETURN(programs.tensorflow_ps, FindRunfile(argv0, "benchmarks/tensorflow_ps.py"));
  const std::string installed = absl::GetFlag(FLAGS_peers_folder);
  programs.installed_folder =
      installed.empty() ? PeersFolder(EnvironmentVariable) : UserPath(installed);
  programs.interrupt = &InterruptSignal();
  return programs;
}

PeerExchangeOptions OptionsFromFlags() {
  PeerExchangeOptions options;
  if (!absl::GetFlag(FLAGS_workers).empty()) options.workers = absl::GetFlag(FLAGS_workers);
  options.bytes = absl::GetFlag(FLAGS_bytes);
  options.contestants = absl::GetFlag(FLAGS_contestants);
  if (absl::GetFlag(FLAGS_rounds) != 0) options.rounds = absl::GetFlag(FLAGS_rounds);
  options.job.exchange.iterations = absl::GetFlag(FLAGS_iterations);
  options.job.exchange.warmup = absl::GetFlag(FLAGS_warmup);
  options.job.exchange.timeout = absl::GetFlag(FLAGS_timeout);
  options.job.huge_pages = absl::GetFlag(FLAGS_peer_huge_pages);
  return options;
}

// Which of ours train.
absl::StatusOr<JobSweep> OursFromFlags() {
  SweepRules rules;
  rules.links = {Link::kNccl, Link::kShm, Link::kGrpc, Link::kTcp};
  SweepFlags flags;
  flags.topologies = absl::GetFlag(FLAGS_topology);
  flags.links = absl::GetFlag(FLAGS_link);
  if (flags.links.empty()) flags.links = {LinkName(Link::kShm)};
  return ParseJobSweep(flags, rules);
}

absl::StatusOr<PeerTrainingOptions> TrainingFromFlags(const std::string& argv0, int cores) {
  PeerTrainingOptions options;
  const std::vector<std::string> ranks = absl::GetFlag(FLAGS_workers);
  if (!ranks.empty() && (ranks.size() > 1 || !absl::SimpleAtoi(ranks[0], &options.ranks))) {
    return FlagError("workers", "one number with --train", absl::StrJoin(ranks, ","));
  }
  options.model = absl::GetFlag(FLAGS_model);
  GS_RETURN_IF_ERROR(CheckNames("model", {options.model}, {"resnet18", "resnet50"}));
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.threads = absl::GetFlag(FLAGS_threads);
  if (options.threads == 0 && options.ranks > 0) {
    options.threads = ThreadsPerRank(cores, options.ranks);
  }
  if (absl::GetFlag(FLAGS_rounds) != 0) options.rounds = absl::GetFlag(FLAGS_rounds);
  options.steps_per_round = absl::GetFlag(FLAGS_steps_per_round);
  options.pixels = absl::GetFlag(FLAGS_pixels);
  if (options.pixels < 8 || options.pixels > 1024 || options.pixels % 2 != 0) {
    return FlagError("pixels", "an even number from 8 to 1024", absl::StrCat(options.pixels));
  }
  options.loader_threads = absl::GetFlag(FLAGS_loader_threads);
  GS_RETURN_IF_ERROR(CheckAtLeast("loader_threads", 0, options.loader_threads));
  GS_RETURN_IF_ERROR(CheckAtLeast("batch_size", 1, options.batch_size));
  GS_RETURN_IF_ERROR(CheckAtLeast("threads", 1, options.threads));
  GS_RETURN_IF_ERROR(CheckAtLeast("workers", 1, options.ranks));
  GS_RETURN_IF_ERROR(CheckAtLeast("rounds", 1, options.rounds));
  GS_RETURN_IF_ERROR(CheckAtLeast("steps_per_round", 1, options.steps_per_round));
  for (const std::string& text : absl::GetFlag(FLAGS_bucket_bytes)) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(text);
    if (!bytes.ok()) return FlagError("bucket_bytes", "sizes such as 1MiB,25MiB", text);
    options.bucket_bytes.push_back(*bytes);
  }
  GS_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(absl::GetFlag(FLAGS_precision)));
  options.compute = {absl::GetFlag(FLAGS_device), precision, absl::GetFlag(FLAGS_channels_last),
                     absl::GetFlag(FLAGS_tf32), absl::GetFlag(FLAGS_cudnn_benchmark)};
  GS_ASSIGN_OR_RETURN(const JobSweep ours, OursFromFlags());
  options.topologies = ours.topologies;
  if (!absl::GetFlag(FLAGS_link).empty()) options.links = ours.links;
  options.pytorch = absl::GetFlag(FLAGS_pytorch);
  if (!options.pytorch.empty()) {
    GS_RETURN_IF_ERROR(
        CheckNames("pytorch", options.pytorch,
                   {"best", "default", "compiled", "graphs", "compiled_graphs", "gloo"}));
  }
  options.peer_timeout = absl::GetFlag(FLAGS_peer_timeout);
  options.ranks_per_gpu = absl::GetFlag(FLAGS_ranks_per_gpu);
  const absl::StatusOr<std::string> device =
      ResolveDevice(options.compute.device, options.links,
                    GpusOf(options.ranks, std::max(1, options.ranks_per_gpu)), CheckGpu);
  if (!device.ok()) return absl::InvalidArgumentError(device.status().message());
  options.compute.device = *device;
  GS_RETURN_IF_ERROR(CheckRanksPerGpu(options.ranks_per_gpu, *device));
  const bool ps =
      std::count(options.topologies.begin(), options.topologies.end(), Topology::kPs) > 0;
  const std::vector<Link> links = options.links.empty() && options.compute.on_gpu()
                                      ? std::vector<Link>{Link::kNccl}
                                      : options.links;
  if (ps && !links.empty() && std::all_of(links.begin(), links.end(), BetweenGpus)) {
    return FlagError("link", "shm, grpc or tcp too, for ps, which does not run over NCCL",
                     LinkName(Link::kNccl));
  }
  GS_RETURN_IF_ERROR(CheckCompute(options.compute, {UpdateSite::kWorker}));
  options.environment = EnvironmentVariable;
  options.python = absl::GetFlag(FLAGS_python);
  GS_ASSIGN_OR_RETURN(options.script, FindRunfile(argv0, "benchmarks/pytorch_train.py"));
  GS_ASSIGN_OR_RETURN(options.rank_binary, FindRunfile(argv0, "benchmarks/train_rank"));
  return options;
}

// This and the next return the exit code. `records` say on which machine they are from.
absl::StatusOr<int> CompareTraining(const std::string& argv0, proto::RunRecords* records) {
  GS_ASSIGN_OR_RETURN(const PeerTrainingOptions options,
                      TrainingFromFlags(argv0, records->machine().cores()));
  GS_ASSIGN_OR_RETURN(const std::vector<proto::Run> runs, RunPeerTraining(options));
  for (const proto::Run& run : runs) *records->add_runs() = run;
  GS_RETURN_IF_ERROR(WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), *records));
  return 0;
}

absl::StatusOr<int> CompareExchanges(const std::string& argv0, proto::RunRecords* records) {
  const PeerExchangeOptions options = OptionsFromFlags();
  GS_ASSIGN_OR_RETURN(const std::vector<PeerCase> cases,
                      ListPeerCases(options, records->machine().cores()));
  for (const PeerCase& each : cases) {
    const ExchangeOptions& exchange = each.job.exchange;
    GS_RETURN_IF_ERROR(
        CheckExchangeMemory(FormatBytes(exchange.bytes), exchange, /*on_host=*/true));
  }
  GS_ASSIGN_OR_RETURN(const PeerPrograms programs, FindPrograms(argv0));
  CatchInterrupts();
  std::printf("%s\n%s\n", FormatMachine(records->machine()).c_str(),
              BuildModeWarning(records->machine()).c_str());
  const auto progress = [](absl::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  };
  int exit_code = 0;
  std::vector<std::vector<proto::Run>> measured;
  for (const PeerCase& peer_case : cases) {
    const ExchangeOptions& exchange = peer_case.job.exchange;
    const std::string name =
        absl::StrCat(exchange.world_size, " ranks, ", FormatBytes(exchange.bytes));
    progress(name);
    GS_ASSIGN_OR_RETURN(PeerOutcome outcome,
                        MeasurePeerCase(programs, peer_case, options.rounds, progress));
    std::printf("%s, %d rounds of %d\n%s\n", name.c_str(), options.rounds, exchange.iterations,
                outcome.table.c_str());
    std::fflush(stdout);
    if (outcome.wrong > 0) PrintError(absl::StrCat(outcome.wrong, " elements are wrong"));
    if (!outcome.ours_failure.empty()) PrintError(outcome.ours_failure);
    if (outcome.wrong > 0 || !outcome.ours_failure.empty()) exit_code = 1;
    for (const proto::Run& run : outcome.records) *records->add_runs() = run;
    GS_RETURN_IF_ERROR(WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), *records));
    measured.push_back(std::move(outcome.records));
  }
  if (measured.size() > 1) std::printf("%s", PeerSummary(measured).c_str());
  return exit_code;
}

int Peers(int argc, char** argv) {
  const std::vector<std::string> positional = ParseBenchmarkFlags(argc, argv, kUsage);
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine(CheckoutFolder());
  records.set_command(CommandLine("peers", argc, argv));
  absl::StatusOr<int> exit_code = 0;
  const absl::Status writable = CheckWritable("json", UserPath(absl::GetFlag(FLAGS_json)));
  if (!positional.empty()) {
    exit_code = absl::InvalidArgumentError(
        absl::StrCat("expected flags only, found \"", positional[0], "\""));
  } else if (!writable.ok()) {
    exit_code = writable;
  } else if (absl::GetFlag(FLAGS_train)) {
    exit_code = CompareTraining(argv[0], &records);
  } else {
    exit_code = CompareExchanges(argv[0], &records);
  }
  if (exit_code.ok()) return *exit_code;
  PrintError(exit_code.status().message());
  if (absl::IsCancelled(exit_code.status())) return 128 + InterruptSignal();
  const bool refused = absl::IsInvalidArgument(exit_code.status()) ||
                       absl::IsResourceExhausted(exit_code.status());  // before the first round
  return refused ? kBadInput : 1;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) { return gradsync::ExitCode("peers", gradsync::Peers(argc, argv)); }
