// How long training steps take on clusters that need not exist: the simulator
// (simulator/simulate.h) on the command line. Copy and try:
//
//   bazel run //benchmarks:predict
//   bazel run //benchmarks:predict -- --workers=2..4096 --model=vgg16 --bandwidth=25gbit
//   bazel run //benchmarks:predict -- --workers=8 --bandwidth=1gbit --advise
//   bazel run //benchmarks:predict -- --workers=4,8 --zero=0,2,3 --bucket_bytes=4MiB
//   bazel run //benchmarks:predict -- --workers=1,2 --data_parallel=1,2,4 --model=vgg16
//   bazel run //benchmarks:predict -- --model=resnet18 --mesh=data=2,pipeline=2 --pipeline_schedule=gpipe,1f1b
//   bazel run //benchmarks:predict -- --model=resnet18 --mesh=auto --workers=8 --micro_batches=1,4,8 --advise
//   bazel run //benchmarks:predict -- --model=gpt --mesh="data=4;data=2,tensor=2" --servers=2 --bandwidth=10gbit
//   bazel run //benchmarks:predict -- --probe=sync.json --bandwidth=400mbit --workers=4 --servers=1,2,n
//
// Exit codes: 0; 2 bad flags or files.

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/prediction/mesh_prediction.h"
#include "benchmarks/prediction/predict_options.h"
#include "benchmarks/prediction/predict_report.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/terminal.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/program/program_main.h"
#include "simulator/calibration.h"
#include "tools/subprocess.h"

ABSL_FLAG(std::vector<std::string>, topology, gradsync::PredictOptions().topologies,
          "topologies: some of ring, ps, local");
ABSL_FLAG(std::vector<std::string>, workers, gradsync::PredictOptions().workers,
          "numbers of workers, or FIRST..LAST: doubled from FIRST on; at most 4096");
ABSL_FLAG(std::vector<std::string>, servers, gradsync::PredictOptions().servers,
          "numbers of parameter servers, n (as many as workers) or such as n/2; with mixed "
          "placement the dedicated ones");
ABSL_FLAG(std::vector<std::string>, placement, gradsync::PredictOptions().placements,
          "where servers are: some of dedicated, colocated (beside workers), mixed (both)");
ABSL_FLAG(std::vector<std::string>, update, gradsync::PredictOptions().updates,
          "who runs the optimizer: worker, owner, or both");
ABSL_FLAG(std::vector<std::string>, compression, gradsync::PredictOptions().compressions,
          "how gradients are compressed on the wire: some of none, fp16, bf16, topk:R (ps only)");
ABSL_FLAG(std::vector<std::string>, consistency, gradsync::PredictOptions().consistencies,
          "for whom a step waits: some of bsp, ssp:S, asp; all but bsp for parameter servers that "
          "update");
ABSL_FLAG(std::vector<std::string>, zero, gradsync::PredictOptions().zeros,
          "what owners keep for all, as //worker has it: some of 0 to 3; from 1 on they update; 2 "
          "and 3 up to 64 workers, and with no mesh that cuts the model; 3 from a profile with "
          "blocks");
ABSL_FLAG(std::string, straggler, "", "who computes slower: RANK:FACTOR; up to 64 workers");
ABSL_FLAG(std::vector<std::string>, bandwidth, gradsync::PredictOptions().bandwidths,
          "what each host's interface carries, each way, such as 400mbit or 10gbit");
ABSL_FLAG(std::string, model, "resnet50",
          "model whose profile is taken: resnet18, resnet50, vgg16, bert_large or gpt");
ABSL_FLAG(std::string, profile, "",
          "file of a profile (train_bench --record), instead of --model; with --mesh files of one "
          "model recorded with other batches, with commas: each micro-batch takes the nearest; for "
          "slices those recorded of one of as many");
ABSL_FLAG(int64_t, batch_size, 0, "samples per worker and step; 0: the profile's");
ABSL_FLAG(int64_t, global_batch_size, 0,
          "samples of all workers per step, instead of --batch_size; 0: by --batch_size");
ABSL_FLAG(double, compute_scale, gradsync::PredictOptions().compute_scale,
          "factor of all times of computation, to stand for slower or faster workers");
ABSL_FLAG(std::vector<std::string>, data_parallel, gradsync::PredictOptions().replicas,
          "numbers of replicas of the model in each worker's process, as //worker has them, which "
          "share its batch out and compute at the same time");
ABSL_FLAG(
    std::string, device_bandwidth, gradsync::PredictOptions().device_bandwidth,
    "with --data_parallel: what device 0 copies of parameters, and adds up of gradients, such "
    "as 64gbit");
ABSL_FLAG(std::string, bucket_bytes, gradsync::PredictOptions().bucket_bytes,
          "upper bound of a bucket, such as 25MiB");
ABSL_FLAG(std::string, first_bucket_bytes, gradsync::PredictOptions().first_bucket_bytes,
          "upper bound of the first bucket, such as 1MiB");
ABSL_FLAG(
    std::string, chunk_bytes, gradsync::PredictOptions().chunk_bytes,
    "upper bound of a chunk, such as 1MiB; 0: 32KiB to 96KiB, as jobs on several hosts have it");
ABSL_FLAG(double, rate_factor, gradsync::PredictOptions().rate_factor,
          "share of an interface's nominal rate that is payload");
ABSL_FLAG(absl::Duration, latency, gradsync::PredictOptions().latency,
          "how long a message takes, besides its bytes");
ABSL_FLAG(absl::Duration, message_cost, gradsync::PredictOptions().message_cost,
          "how long a message occupies an interface, besides its bytes");
ABSL_FLAG(absl::Duration, step_overhead, gradsync::PredictOptions().step_overhead,
          "how long each step takes, besides what is modelled");
ABSL_FLAG(std::string, probe, "",
          "file of measured exchanges (sync_bench --bandwidth --json), to which --latency, "
          "--message_cost and --step_overhead are fitted");
ABSL_FLAG(int, cores, 0,
          "with --probe: hosts are emulated on one machine, as the probe's are, and share so many "
          "cores; 0: each has as many as it needs");
ABSL_FLAG(bool, advise, false,
          "print one sentence instead of predictions: which topology and how many servers, for the "
          "last of --workers; --json has the predictions of all that was tried");
ABSL_FLAG(
    std::string, mesh, gradsync::MeshFlags().meshes,
    "the model in stages or slices: meshes such as data=2,pipeline=4 or data=2,tensor=2, several "
    "with semicolons, each with as many workers as it has places; or auto: all meshes of "
    "--workers");
ABSL_FLAG(std::vector<std::string>, pipeline_schedule, gradsync::MeshFlags().schedules,
          "with --mesh: some of naive, gpipe, 1f1b");
ABSL_FLAG(std::vector<std::string>, micro_batches, gradsync::MeshFlags().micro_batches,
          "with --mesh: numbers of micro-batches that make a step, each of --batch_size or, with "
          "--global_batch_size or --mesh=auto, parts of one batch");
ABSL_FLAG(
    std::string, split, gradsync::MeshFlags().splits,
    "with --mesh: the blocks before which stages begin, as 4,7, several with semicolons; auto: "
    "the slowest stage takes the least");
ABSL_FLAG(bool, sequence_parallel, false,
          "with slices (--mesh=tensor=N): what passes between layers is cut along the sequence");
ABSL_FLAG(bool, activation_checkpointing, false,
          "blocks keep their input alone and are computed again in backward; from a profile that "
          "says which");
ABSL_FLAG(std::string, json, "", "file for the predictions (proto/run_record.proto)");

namespace gradsync {
namespace {

constexpr char kUsage[] = "predict [flags]: predicts step times of clusters";
constexpr char kName[] = "predict";
constexpr int kBadInput = 2;

PredictOptions OptionsFromFlags() {
  PredictOptions options;
  options.topologies = absl::GetFlag(FLAGS_topology);
  options.workers = absl::GetFlag(FLAGS_workers);
  options.servers = absl::GetFlag(FLAGS_servers);
  options.placements = absl::GetFlag(FLAGS_placement);
  options.updates = absl::GetFlag(FLAGS_update);
  options.compressions = absl::GetFlag(FLAGS_compression);
  options.consistencies = absl::GetFlag(FLAGS_consistency);
  options.zeros = absl::GetFlag(FLAGS_zero);
  options.straggler = absl::GetFlag(FLAGS_straggler);
  options.bandwidths = absl::GetFlag(FLAGS_bandwidth);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.global_batch_size = absl::GetFlag(FLAGS_global_batch_size);
  options.compute_scale = absl::GetFlag(FLAGS_compute_scale);
  options.replicas = absl::GetFlag(FLAGS_data_parallel);
  options.device_bandwidth = absl::GetFlag(FLAGS_device_bandwidth);
  options.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes);
  options.first_bucket_bytes = absl::GetFlag(FLAGS_first_bucket_bytes);
  options.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes);
  options.rate_factor = absl::GetFlag(FLAGS_rate_factor);
  options.latency = absl::GetFlag(FLAGS_latency);
  options.message_cost = absl::GetFlag(FLAGS_message_cost);
  options.step_overhead = absl::GetFlag(FLAGS_step_overhead);
  return options;
}

void AddPrediction(const PredictOptions& options, proto::Run run, proto::RunRecords* records) {
  run.set_global_batch_size(static_cast<double>(options.global_batch_size));
  run.set_straggler(options.straggler);
  *records->add_predictions() = std::move(run);
}

// Of which there are profiles of slices too.
constexpr char kGpt[] = "gpt";

absl::StatusOr<proto::StepProfile> ReadProfile(const std::string& path) {
  GS_ASSIGN_OR_RETURN(proto::StepProfile profile, ReadStepProfile(path));
  return absl::GetFlag(FLAGS_activation_checkpointing) ? WithCheckpointing(profile) : profile;
}

absl::StatusOr<proto::StepProfile> ReadNamedProfile(const std::string& file) {
  absl::StatusOr<proto::StepProfile> profile = ReadProfile(UserPath(file));
  return profile.ok() ? profile : Named("profile", profile.status());
}

absl::StatusOr<proto::StepProfile> ReadBuiltIn(const char* argv0, absl::string_view name) {
  GS_ASSIGN_OR_RETURN(const std::string path,
                      FindRunfile(argv0, absl::StrCat("benchmarks/profiles/", name, ".json")));
  return ReadProfile(path);
}

absl::StatusOr<proto::StepProfile> FindProfile(const char* argv0) {
  const std::string file = absl::GetFlag(FLAGS_profile);
  if (!file.empty()) return ReadNamedProfile(file);
  const std::vector<std::string> known = {"resnet18", "resnet50", "vgg16", "bert_large", kGpt};
  const std::string model = absl::GetFlag(FLAGS_model);
  if (!Contains(known, model)) {
    return FlagError("model",
                     absl::StrCat("one of ", absl::StrJoin(known, ", "), " (others: --profile)"),
                     model);
  }
  return ReadBuiltIn(argv0, model);
}

// Also adds what was tried to `records`.
absl::Status PrintAdvice(const PredictOptions& options, const proto::StepProfile& profile,
                         const PredictedJob& job, proto::RunRecords* records) {
  ServerPlaces places;
  for (const std::string& text : options.servers) {
    GS_ASSIGN_OR_RETURN(const int servers, ServersOf(text, job.placed.workers));
    places.most = std::max(places.most, servers);
  }
  for (const std::string& text : options.placements) {
    GS_ASSIGN_OR_RETURN(const Placement placement, ParsePlacement(text));
    places.colocated |= placement == Placement::kColocated;
    places.dedicated |= placement == Placement::kDedicated;
    places.mixed |= placement == Placement::kMixed;
  }
  GS_ASSIGN_OR_RETURN(Advice advice, Advise(profile, job, places));
  for (proto::Run& run : advice.tried) AddPrediction(options, std::move(run), records);
  std::printf("%s\n", advice.sentence.c_str());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<proto::StepProfile>> FindProfiles(const char* argv0) {
  std::vector<proto::StepProfile> profiles;
  const std::string files = absl::GetFlag(FLAGS_profile);
  if (files.empty()) {
    GS_ASSIGN_OR_RETURN(profiles.emplace_back(), FindProfile(argv0));
    if (absl::GetFlag(FLAGS_model) != kGpt) return profiles;
    for (const char* slices : {"tensor2", "tensor4", "tensor2_sequence", "tensor4_sequence"}) {
      GS_ASSIGN_OR_RETURN(profiles.emplace_back(),
                          ReadBuiltIn(argv0, absl::StrCat(kGpt, "_", slices)));
    }
    return profiles;
  }
  const std::vector<std::string> paths = absl::StrSplit(files, ',');
  for (const std::string& file : paths) {
    GS_ASSIGN_OR_RETURN(profiles.emplace_back(), ReadNamedProfile(file));
  }
  return profiles;
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

// The constants of --probe, if there is one.
absl::Status TakeProbe(LinkConstants* constants) {
  const std::string probe = absl::GetFlag(FLAGS_probe);
  constants->cores.count = absl::GetFlag(FLAGS_cores);
  if (constants->cores.count < 0) {
    return FlagError("cores", "at least 0", absl::StrCat(constants->cores.count));
  }
  if (probe.empty()) {
    if (constants->cores.count == 0) return absl::OkStatus();
    return FlagError("cores", "0 without --probe, which says what an exchange costs them",
                     absl::StrCat(constants->cores.count));
  }
  GS_ASSIGN_OR_RETURN(const Calibration fit, FitProbe(UserPath(probe), *constants));
  std::printf("%s\n", FormatCalibration(fit).c_str());
  *constants = fit.constants;
  return absl::OkStatus();
}

absl::Status PredictMeshes(int argc, char** argv) {
  const PredictOptions options = OptionsFromFlags();
  GS_ASSIGN_OR_RETURN(const std::vector<proto::StepProfile> profiles, FindProfiles(argv[0]));
  GS_ASSIGN_OR_RETURN(std::vector<PredictedMesh> meshes,
                      ListMeshPredictions(options, MeshesFromFlags(), profiles));
  LinkConstants constants = meshes[0].job.constants;
  GS_RETURN_IF_ERROR(TakeProbe(&constants));
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine(CheckoutFolder());
  records.set_command(CommandLine(kName, argc, argv));
  for (PredictedMesh& mesh : meshes) {
    mesh.job.constants = constants;
    GS_ASSIGN_OR_RETURN(*records.add_predictions(), PredictMesh(profiles, mesh));
  }
  if (absl::GetFlag(FLAGS_advise)) {
    GS_ASSIGN_OR_RETURN(const std::string sentence, AdviseMesh(records.predictions()));
    std::printf("%s\n", sentence.c_str());
  } else {
    std::printf("%s, %.1f MB of gradients, %s\n%s", profiles[0].model().c_str(),
                1e-6 * records.predictions(0).bytes(),
                Count(profiles[0].blocks_size(), "block").c_str(),
                MeshTable(records.predictions()).c_str());
  }
  return WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), records);
}

absl::Status Predict(int argc, char** argv) {
  GS_RETURN_IF_ERROR(CheckWritable("json", UserPath(absl::GetFlag(FLAGS_json))));
  if (!absl::GetFlag(FLAGS_mesh).empty()) return PredictMeshes(argc, argv);
  GS_RETURN_IF_ERROR(CheckNoMesh(MeshesFromFlags()));
  const PredictOptions options = OptionsFromFlags();
  GS_ASSIGN_OR_RETURN(std::vector<PredictedJob> jobs, ListPredictions(options));
  GS_ASSIGN_OR_RETURN(const proto::StepProfile profile, FindProfile(argv[0]));
  LinkConstants constants = jobs[0].constants;
  GS_RETURN_IF_ERROR(TakeProbe(&constants));
  for (PredictedJob& job : jobs) job.constants = constants;
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine(CheckoutFolder());
  records.set_command(CommandLine(kName, argc, argv));
  if (absl::GetFlag(FLAGS_advise)) {
    GS_RETURN_IF_ERROR(PrintAdvice(options, profile, jobs.back(), &records));
    return WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), records);
  }
  for (const PredictedJob& job : jobs) {
    GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(profile, job));
    AddPrediction(options, std::move(run), &records);
  }
  const proto::Run& first = records.predictions(0);
  std::printf("%s, %.1f MB of gradients; a step without communication: %.1f ms (%s)\n%s",
              profile.model().c_str(), 1e-6 * first.bytes(),
              first.step_ms_p50() * first.scaling_efficiency(), profile.origin().c_str(),
              PredictTable(records.predictions()).c_str());
  return WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), records);
}

int Main(int argc, char** argv) {
  ParseFlagsOnly(kName, argc, argv, kUsage);
  const absl::Status done = Predict(argc, argv);
  if (done.ok()) return 0;
  PrintError(kName, done.message());
  return kBadInput;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::ExitCode("predict", gradsync::Main(argc, argv));
}
