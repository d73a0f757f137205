// One job measured. Records the times of a real training step, or replays them with real bytes and
// no computation, so that few cores can stand for many workers. Copy and try:
//
//   bazel run //benchmarks:train_bench -- --record=r18.json --model=resnet18
//   bazel run //benchmarks:train_bench -- --record=gpt_tensor2.json --model=gpt --mesh=tensor=2 --batch_size=4
//   bazel run //benchmarks:train_bench -- --replay=r18.json --topology=ring,ps --json=replay.json
//   bazel run //benchmarks:train_bench -- --replay=r18.json --workers=4,16 --straggler=3:2
//   bazel run //benchmarks:train_bench -- --replay=r18.json --servers=2 --bandwidth=400mbit,1gbit
//   bazel run //benchmarks:train_bench -- --replay=r18.json --update=owner --consistency=bsp,ssp:2
//   bazel run //benchmarks:train_bench -- --replay=r18.json --zero=0,2,3 --bucket_bytes=4MiB --bandwidth=1gbit
//   bazel run //benchmarks:train_bench -- --replay=r18.json --mesh=data=2,pipeline=2 --bandwidth=1gbit
//
// Strong scaling, 64 samples on one worker and on two:
//
//   bazel run //benchmarks:train_bench -- --record=b64.json --model=mlp --batch_size=64
//   bazel run //benchmarks:train_bench -- --record=b32.json --model=mlp --batch_size=32
//   bazel run //benchmarks:train_bench -- --replay=b64.json,b32.json --global_batch_size=64 --workers=1,2
//
// Exit codes: 0; 1 a result was wrong or a job failed; 2 bad flags or files, found before any job
// started; 128 + signal when interrupted.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "benchmarks/network/measured_sweep_main.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/prediction/predict_options.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/profiles/step_recorder.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/replay/mesh_cases.h"
#include "benchmarks/replay/replay_cases.h"
#include "benchmarks/replay/replay_job.h"
#include "benchmarks/replay/replay_report.h"
#include "c10/core/DeviceType.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/group/mesh.h"
#include "core/plan/kinds.h"
#include "core/program/program_main.h"
#include "simulator/calibration.h"
#include "tools/lab_flags.h"
#include "tools/subprocess.h"
#include "worker/models/model_options.h"
#include "worker/pipeline/split.h"
#include "worker/train/compute_options.h"

ABSL_FLAG(std::string, record, "",
          "record a step of a real job (topology local): file for its profile");
ABSL_FLAG(std::vector<std::string>, replay, {}, "replay recorded steps: files of profiles");

ABSL_FLAG(std::string, model, "resnet18",
          absl::StrCat("model to record: ", gradsync::ListOfModels()));
ABSL_FLAG(std::string, stem, "imagenet",
          "first convolution of a ResNet to record: imagenet (7x7) or cifar (3x3)");
ABSL_FLAG(int64_t, classes, 0, "classes of the model to record; 0: as many as the data has");
ABSL_FLAG(std::string, data, "synthetic",
          "data to record with: synthetic, synthetic:PIXELS or cifar10:DIR; text:FILE for gpt");
ABSL_FLAG(int64_t, gpt_width, gradsync::ModelOptions().gpt_width,
          "with --model=gpt: width of what passes between layers, a multiple of --gpt_heads");
ABSL_FLAG(int64_t, gpt_layers, gradsync::ModelOptions().gpt_layers,
          "with --model=gpt: number of layers");
ABSL_FLAG(int64_t, gpt_heads, gradsync::ModelOptions().gpt_heads,
          "with --model=gpt: attention heads of a layer");
ABSL_FLAG(int64_t, gpt_context, gradsync::ModelOptions().gpt_context,
          "with --model=gpt: tokens of a sample");
ABSL_FLAG(int64_t, batch_size, 32, "samples per step to record");
ABSL_FLAG(int, threads, 1, "compute threads of the job to record");
ABSL_FLAG(std::string, precision, "fp32",
          "type in which convolutions and matrix products of the job to record compute: fp32 or "
          "bf16");
ABSL_FLAG(bool, channels_last, false,
          "keep images and weights of convolutions of the job to record in channels-last memory "
          "format (NHWC)");

ABSL_FLAG(std::vector<std::string>, topology, gradsync::ReplaySweepOptions().topologies,
          "topologies: some of ring, ps, local");
ABSL_FLAG(std::vector<std::string>, link, gradsync::ReplaySweepOptions().links,
          "links: some of auto, grpc, tcp, shm, gloo (the last: ring only)");
ABSL_FLAG(std::vector<std::string>, update, gradsync::ReplaySweepOptions().updates,
          "who runs the optimizer: worker (whose recorded time is replayed), owner, or both");
ABSL_FLAG(std::vector<std::string>, zero, gradsync::ReplaySweepOptions().zeros,
          "with --replay: what owners keep for all, as //worker has it: some of 0 to 3; from 1 on "
          "they update; 3 from a profile with blocks");
ABSL_FLAG(std::vector<std::string>, workers, gradsync::ReplaySweepOptions().workers,
          "numbers of workers");
ABSL_FLAG(std::vector<std::string>, servers, gradsync::ReplaySweepOptions().servers,
          "numbers of parameter servers, for ps");
ABSL_FLAG(
    std::vector<std::string>, placement, gradsync::ReplaySweepOptions().placements,
    "where servers are on an emulated network: some of dedicated, colocated (beside workers), "
    "mixed (one beside each worker, and --servers others)");
ABSL_FLAG(std::vector<std::string>, bandwidth, {},
          "what each host's link carries, each way, such as 400mbit: every process runs on a host "
          "of an emulated network; empty: on this host alone");
ABSL_FLAG(bool, predict, true, "with --bandwidth: print what the simulator predicts beside it");
ABSL_FLAG(std::string, probe, "",
          "file of measured exchanges (sync_bench --bandwidth --json) to fit the simulator's "
          "constants to, as predict does");
ABSL_FLAG(std::vector<std::string>, bucket_bytes, gradsync::ReplaySweepOptions().bucket_bytes,
          "upper bounds of a bucket, such as 1MiB,25MiB");
ABSL_FLAG(std::string, first_bucket_bytes, gradsync::ReplaySweepOptions().first_bucket_bytes,
          "upper bound of the first bucket, such as 1MiB");
ABSL_FLAG(
    std::string, chunk_bytes, gradsync::ReplaySweepOptions().chunk_bytes,
    "upper bound of a chunk, such as 1MiB; 0: by bucket size and workers, 32KiB to 96KiB with "
    "--bandwidth or --mesh");
ABSL_FLAG(std::vector<std::string>, compression, gradsync::ReplaySweepOptions().compressions,
          "how gradients are compressed on the wire (grpc, tcp): some of none, fp16, bf16, topk:R "
          "(ps only)");
ABSL_FLAG(
    std::vector<std::string>, consistency, gradsync::ReplaySweepOptions().consistencies,
    "for whom a step waits: some of bsp, ssp:S (nobody more than S steps ahead of the "
    "slowest), asp (nobody waits); all but bsp for ps that update at the owner over grpc or tcp");
ABSL_FLAG(std::vector<std::string>, compute_scale, gradsync::ReplaySweepOptions().compute_scales,
          "factors of all replayed times of computation, to stand for slower or faster workers");
ABSL_FLAG(int64_t, global_batch_size, 0,
          "with --replay: samples of all workers per step (strong scaling); n workers replay the "
          "profile whose batch is the n-th part; 0: each profile, with any number of workers");
ABSL_FLAG(std::string, mesh, gradsync::MeshFlags().meshes,
          "replay the model in stages or slices: meshes such as data=2,pipeline=2, several with "
          "semicolons, or "
          "auto, all of --workers; each micro-batch takes the profile whose batch is nearest; with "
          "--record tensor=N, to record one of N slices");
ABSL_FLAG(bool, sequence_parallel, false,
          "with slices: what passes between layers is cut along the sequence");
ABSL_FLAG(std::vector<std::string>, pipeline_schedule, gradsync::MeshFlags().schedules,
          "with --mesh: some of naive, gpipe, 1f1b");
ABSL_FLAG(std::vector<std::string>, micro_batches, gradsync::MeshFlags().micro_batches,
          "with --mesh: numbers of micro-batches that make a step, each of the profile's batch or, "
          "with --global_batch_size, parts of that");
ABSL_FLAG(
    std::string, split, gradsync::MeshFlags().splits,
    "with --mesh: the blocks before which stages begin, as 4,7, several with semicolons; auto: "
    "the slowest stage takes the least");
ABSL_FLAG(std::string, straggler, "",
          "who computes slower: RANK:FACTOR, or random:SEED:PROBABILITY:FACTOR");
ABSL_FLAG(int, connections, 0,
          "connections of grpc or tcp per pair of peers; 0: the topology's default");
ABSL_FLAG(int64_t, steps, gradsync::ReplaySweepOptions().steps,
          "steps of each job, warm-up included");
ABSL_FLAG(int64_t, warmup_steps, gradsync::ReplaySweepOptions().warmup_steps,
          "steps at the start that are not measured");
ABSL_FLAG(absl::Duration, timeout, gradsync::ReplaySweepOptions().timeout,
          "longest wait for other processes, at the start and in a step");
ABSL_FLAG(std::string, json, "", "file for the records (proto/run_record.proto)");
ABSL_FLAG(std::string, server_binary, "",
          "program that servers run; empty: the //ps_server of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "train_bench --record=FILE | --replay=FILE [flags]: records a training step's times, or "
    "replays them with real bytes";
constexpr char kName[] = "train_bench";
constexpr int kBadInput = 2;
constexpr int kMostSlices = 4096;

TrainerOptions TrainerFromFlags() {
  TrainerOptions options;
  options.model.name = absl::GetFlag(FLAGS_model);
  options.model.stem = absl::GetFlag(FLAGS_stem);
  if (absl::GetFlag(FLAGS_classes) != 0) options.model.classes = absl::GetFlag(FLAGS_classes);
  options.model.gpt_width = absl::GetFlag(FLAGS_gpt_width);
  options.model.gpt_layers = absl::GetFlag(FLAGS_gpt_layers);
  options.model.gpt_heads = absl::GetFlag(FLAGS_gpt_heads);
  options.model.gpt_context = absl::GetFlag(FLAGS_gpt_context);
  options.data = absl::GetFlag(FLAGS_data);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  OptimizerGroup group;  // the defaults of //worker
  group.momentum = 0.9;
  group.weight_decay = 5e-4;
  options.optimizer.groups = {group};
  options.recipe.base = 0.01;
  return options;
}

// Of --record: which of how many slices.
absl::Status SlicesFromFlags(PipelineOptions* pipeline) {
  const std::string mesh = absl::GetFlag(FLAGS_mesh);
  pipeline->split_sequence = absl::GetFlag(FLAGS_sequence_parallel);
  int slices = 1;
  absl::string_view size = mesh;
  if (!mesh.empty() && (!absl::ConsumePrefix(&size, "tensor=") ||
                        !absl::SimpleAtoi(size, &slices) || slices < 1 || slices > kMostSlices)) {
    return FlagError("mesh", absl::StrCat("tensor=N with --record, N at most ", kMostSlices), mesh);
  }
  if (pipeline->split_sequence && slices == 1) {
    return NoSlicesToSplitFor();
  }
  GS_ASSIGN_OR_RETURN(pipeline->mesh, Mesh::Parse(mesh, slices));
  return absl::OkStatus();
}

absl::Status Record(const std::string& path, const std::string& command) {
  TrainerOptions options = TrainerFromFlags();
  GS_ASSIGN_OR_RETURN(options.compute.precision, ParsePrecision(absl::GetFlag(FLAGS_precision)));
  GS_RETURN_IF_ERROR(CheckPrecision(options.compute.precision, c10::DeviceType::CPU));
  options.compute.channels_last = absl::GetFlag(FLAGS_channels_last);
  GS_RETURN_IF_ERROR(SlicesFromFlags(&options.pipeline));
  if (options.threads < 1) {
    return FlagError("threads", "at least 1", absl::StrCat(options.threads));
  }
  if (!absl::GetFlag(FLAGS_straggler).empty()) {
    return FlagError("straggler", "nothing with --record", absl::GetFlag(FLAGS_straggler));
  }
  GS_RETURN_IF_ERROR(CheckWritable("record", path));
  PrintMachine(DescribeMachine());
  const std::string busy = BusyWarning(BusyCores(absl::Seconds(1)));
  if (!busy.empty()) std::printf("%s\n", busy.c_str());
  const bool watched = isatty(STDOUT_FILENO) == 1;
  const auto on_step = [watched](const StepReport& step) {
    if (!watched) return;
    std::printf("\rstep %ld of %ld%s", static_cast<long>(step.step), static_cast<long>(step.steps),
                step.step == step.steps ? "\n" : "");
    std::fflush(stdout);
  };
  GS_ASSIGN_OR_RETURN(proto::StepProfile profile, RecordStep(options, on_step));
  GS_RETURN_IF_ERROR(RecordBlocks(options, &profile));
  if (!busy.empty()) profile.set_note(absl::StrCat(profile.note(), "; ", busy));
  profile.set_command(command);
  GS_RETURN_IF_ERROR(WriteJson(path, profile));
  std::printf("%s: forward %.1f ms, backward %.1f ms, update %.1f ms, %d tensors, %d blocks\n",
              path.c_str(), 1e-3 * profile.forward_us(), 1e-3 * profile.backward_us(),
              1e-3 * profile.update_us(), profile.tensors_size(), profile.blocks_size());
  return absl::OkStatus();
}

struct Sweep {
  std::vector<ReplayCase> cases;
  std::vector<MeshCase> meshes;  // with --mesh: as many as cases
  JobPrograms programs;
  std::string tcp_rank_binary;
  LinkConstants constants;  // of the simulator: those of --probe, or its own
};

ReplaySweepOptions SweepFromFlags() {
  ReplaySweepOptions options;
  for (const std::string& path : absl::GetFlag(FLAGS_replay)) {
    options.profiles.push_back(UserPath(path));
  }
  options.topologies = absl::GetFlag(FLAGS_topology);
  options.links = absl::GetFlag(FLAGS_link);
  options.updates = absl::GetFlag(FLAGS_update);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.placements = absl::GetFlag(FLAGS_placement);
  options.bandwidths = absl::GetFlag(FLAGS_bandwidth);
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  options.first_bucket_bytes = absl::GetFlag(FLAGS_first_bucket_bytes);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  options.compressions = absl::GetFlag(FLAGS_compression);
  options.consistencies = absl::GetFlag(FLAGS_consistency);
  options.zeros = absl::GetFlag(FLAGS_zero);
  options.compute_scales = absl::GetFlag(FLAGS_compute_scale);
  options.straggler = absl::GetFlag(FLAGS_straggler);
  options.global_batch_size = absl::GetFlag(FLAGS_global_batch_size);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  options.connections = absl::GetFlag(FLAGS_connections);
  options.timeout = absl::GetFlag(FLAGS_timeout);
  return options;
}

MeshFlags MeshesFromFlags() {
  MeshFlags flags;
  flags.meshes = absl::GetFlag(FLAGS_mesh);
  flags.schedules = absl::GetFlag(FLAGS_pipeline_schedule);
  flags.micro_batches = absl::GetFlag(FLAGS_micro_batches);
  flags.splits = absl::GetFlag(FLAGS_split);
  flags.split_sequence = absl::GetFlag(FLAGS_sequence_parallel);
  return flags;
}

absl::StatusOr<Sweep> PrepareSweep(const char* argv0) {
  Sweep sweep;
  if (absl::GetFlag(FLAGS_mesh).empty()) {
    GS_RETURN_IF_ERROR(CheckNoMesh(MeshesFromFlags()));
    GS_ASSIGN_OR_RETURN(sweep.cases, ListReplayCases(SweepFromFlags()));
  } else {
    GS_ASSIGN_OR_RETURN(sweep.meshes, ListMeshCases(SweepFromFlags(), MeshesFromFlags()));
    for (const MeshCase& mesh : sweep.meshes) sweep.cases.push_back(mesh.replay);
  }
  GS_ASSIGN_OR_RETURN(sweep.programs.rank_binary, FindRunfile(argv0, "benchmarks/replay_rank"));
  sweep.programs.server_binary = UserPath(absl::GetFlag(FLAGS_server_binary));
  if (sweep.programs.server_binary.empty()) {
    GS_ASSIGN_OR_RETURN(sweep.programs.server_binary, FindRunfile(argv0, "ps_server/ps_server"));
  }
  GS_ASSIGN_OR_RETURN(sweep.tcp_rank_binary, FindRunfile(argv0, "benchmarks/tcp_flows_rank"));
  sweep.programs.interrupt = &InterruptSignal();
  if (const std::string probe = absl::GetFlag(FLAGS_probe); !probe.empty()) {
    LinkConstants start;
    start.cores.count = DescribeMachine().cores();  // which all emulated hosts share
    GS_ASSIGN_OR_RETURN(const Calibration fit, FitProbe(UserPath(probe), start));
    std::printf("%s\n", FormatCalibration(fit).c_str());
    sweep.constants = fit.constants;
  }
  return sweep;
}

// The measurement, and on a network the prediction beside it, unless it is not asked for.
absl::Status RunOne(const Sweep& sweep, size_t number, const EmulatedNetwork* network,
                    proto::RunRecords* records) {
  const ReplayCase& replay = sweep.cases[number];
  absl::optional<proto::Run> predicted;
  if (network != nullptr && absl::GetFlag(FLAGS_predict)) {
    LinkConstants constants = sweep.constants;
    const double measured = network->record().tcp_factor();
    if (measured > 0) constants.rate_factor = measured;
    // What passes between stages may be no more than a burst.
    if (!sweep.meshes.empty()) constants.burst_bytes = network->record().burst_bytes();
    GS_ASSIGN_OR_RETURN(predicted, sweep.meshes.empty()
                                       ? PredictReplay(replay, constants)
                                       : PredictMeshCase(sweep.meshes[number], constants));
  }
  JobPrograms programs = sweep.programs;
  programs.network = network;
  GS_ASSIGN_OR_RETURN(const proto::Run run, RunReplayJob(replay, programs));
  std::printf("%s", ReplayLine(run, predicted.has_value() ? &*predicted : nullptr).c_str());
  std::fflush(stdout);
  *records->add_runs() = run;
  if (predicted.has_value()) *records->add_predictions() = *predicted;
  return absl::OkStatus();
}

int Replay(const Sweep& sweep, const std::string& command) {
  MeasuredSweep measured;
  measured.program = kName;
  measured.command = command;
  measured.json = UserPath(absl::GetFlag(FLAGS_json));
  measured.head = ReplayHead();
  for (const ReplayCase& replay : sweep.cases) measured.jobs.push_back(replay.job);
  measured.lab = LabFromFlags();
  measured.tcp_rank_binary = sweep.tcp_rank_binary;
  measured.timeout = absl::GetFlag(FLAGS_timeout);
  measured.describe = [&](size_t i) { return Describe(sweep.cases[i]); };
  measured.measure = [&](size_t i, const EmulatedNetwork* network, proto::RunRecords* records) {
    return RunOne(sweep, i, network, records);
  };
  return RunMeasuredSweep(measured);
}

int Fail(const absl::Status& status) {
  PrintError(kName, status.message());
  return kBadInput;
}

int TrainBench(int argc, char** argv) {
  ParseFlagsOnly(kName, argc, argv, kUsage);
  const std::string command = CommandLine(kName, argc, argv);
  const std::string record = absl::GetFlag(FLAGS_record);
  if (record.empty() == absl::GetFlag(FLAGS_replay).empty()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("expected either --record=FILE or --replay=FILE, found ",
                     record.empty() ? "none" : "both")));
  }
  if (!record.empty()) {
    const absl::Status recorded = Record(UserPath(record), command);
    return recorded.ok() ? 0 : Fail(recorded);
  }
  const absl::StatusOr<Sweep> sweep = PrepareSweep(argv[0]);
  return sweep.ok() ? Replay(*sweep, command) : Fail(sweep.status());
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  return gradsync::ExitCode("train_bench", gradsync::TrainBench(argc, argv));
}
