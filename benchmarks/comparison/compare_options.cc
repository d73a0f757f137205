#include "benchmarks/comparison/compare_options.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "allreduce/open_nccl.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/records/terminal.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/straggler.h"
#include "core/program/byte_sizes.h"
#include "worker/data/open_dataset.h"
#include "worker/data/tokens.h"
#include "worker/models/model_options.h"

namespace gradsync {
namespace {

constexpr int64_t kDefaultBatchSize = 32;
constexpr char kAutoSplit[] = "auto";

// Flags that `compare` gives to the workers itself.
constexpr char kOwnFlags[] =
    "topology link update zero consistency compression servers num_servers rank world_size master "
    "local_rank port_file metrics_json log_every model stem data batch_size steps epochs "
    "warmup_steps threads lr seed straggler timeout device precision tf32 channels_last "
    "cudnn_benchmark nocudnn_benchmark offload mesh pipeline_schedule micro_batches split "
    "data_parallel";

absl::StatusOr<JobSweep> SweepOf(const CompareOptions& options) {
  SweepRules rules;
  rules.topologies = {Topology::kPs, Topology::kRing, Topology::kLocal};
  rules.links = {Link::kAuto, Link::kGrpc, Link::kTcp, Link::kShm, Link::kGloo, Link::kNccl};
  rules.on_hosts = !options.bandwidths.empty();
  rules.bulk_elsewhere = true;
  SweepFlags flags = options;
  if (flags.workers.empty()) flags.workers = {"1", "2"};
  if (flags.links.empty()) {
    flags.links = {LinkName(Link::kGrpc)};
    if (!rules.on_hosts) flags.links.push_back(LinkName(Link::kShm));
  }
  return ParseJobSweep(flags, rules);
}

absl::Status CheckEachOnce(const std::vector<std::string>& bandwidths) {
  for (const std::string& bandwidth : bandwidths) {
    const auto same = std::count(bandwidths.begin(), bandwidths.end(), bandwidth);
    if (same > 1) return FlagError("bandwidth", "each bandwidth once", bandwidth);
  }
  return CheckBandwidths(bandwidths);
}

absl::Status CheckTraining(const CompareOptions& options, const std::vector<UpdateSite>& updates) {
  GS_RETURN_IF_ERROR(CheckNames("model", {options.model}, ModelNames()));
  GS_RETURN_IF_ERROR(CheckNames("stem", {options.stem}, {"imagenet", "cifar"}));
  GS_RETURN_IF_ERROR(CheckAtLeast("rounds", 1, options.rounds));
  GS_RETURN_IF_ERROR(CheckAtLeast("warmup_steps", 0, options.warmup_steps));
  if (options.steps <= options.warmup_steps) {
    return FlagError("steps", absl::StrCat("more than --warmup_steps=", options.warmup_steps),
                     absl::StrCat(options.steps));
  }
  GS_RETURN_IF_ERROR(CheckAtLeast("threads", 1, options.threads));
  GS_RETURN_IF_ERROR(CheckCompute(options.compute, updates));
  if (options.compute.on_gpu() && !options.straggler.empty()) {
    return FlagError("straggler", "none on a GPU, whose work the host only queues",
                     options.straggler);
  }
  if (!(options.lr >= 0)) return FlagError("lr", "at least 0", absl::StrCat(options.lr));
  GS_RETURN_IF_ERROR(CheckTimeout(options.timeout));
  for (const std::string& flag : options.worker_flags) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(
        absl::StripPrefix(absl::StripPrefix(flag, "-"), "-"), absl::MaxSplits('=', 1));
    if (!absl::StartsWith(flag, "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected worker flags, --name=value, after --, found \"", flag, "\""));
    }
    const std::vector<std::string> own = absl::StrSplit(kOwnFlags, ' ');
    if (Contains(own, parts.first)) {
      return FlagError(parts.first, "it before the --, or not at all", flag);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckData(const CompareOptions& options) {
  // The length of a sample is a flag of the workers, who check it.
  const bool tokens = FindModel(options.model)->input == InputKind::kTokens;
  for (Split split : {Split::kTrain, Split::kTest}) {
    const absl::Status status = tokens ? OpenTokens(options.data, split, /*context=*/1).status()
                                       : OpenDataset(options.data, split).status();
    if (!status.ok() && !absl::StartsWith(status.message(), "--")) {
      return absl::Status(status.code(), absl::StrCat("--data: ", status.message()));
    }
    GS_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// Of emulated networks; "" where there is none.
std::vector<std::string> BandwidthsOf(const CompareOptions& options) {
  return options.bandwidths.empty() ? std::vector<std::string>{""} : options.bandwidths;
}

// Of a micro-batch.
absl::StatusOr<int64_t> MicroBatchSize(const CompareOptions& options, const Mesh& mesh,
                                       int64_t count) {
  const int64_t parts = mesh.replicas() * count;
  if (options.global_batch_size == 0) {
    return options.batch_size == 0 ? kDefaultBatchSize : options.batch_size;
  }
  if (options.batch_size > 0 || options.global_batch_size % parts != 0) {
    return FlagError("global_batch_size",
                     absl::StrCat("no --batch_size, and a multiple of ", parts, ", for ", count,
                                  " micro-batches of ", mesh.ToString()),
                     absl::StrCat(options.global_batch_size));
  }
  return options.global_batch_size / parts;
}

// Adds `job` on this mesh with each schedule, number of micro-batches and split.
absl::Status AddArrangements(const CompareOptions& options, const MeshLists& lists,
                             const Mesh& mesh, const PlacedJob& job,
                             std::vector<Configuration>* all) {
  const std::vector<PipelineSchedule> one = {PipelineSchedule::kOneForwardOneBackward};
  const std::vector<std::string> uncut = {""};
  Configuration next;
  next.job = job;
  Arrangement& how = next.job.arrangement;
  how.mesh = mesh.ToString();
  for (PipelineSchedule schedule : mesh.has_pipeline() ? lists.schedules : one) {
    if (mesh.has_pipeline()) how.schedule = std::string(PipelineScheduleName(schedule));
    for (int64_t count : lists.micro_batches) {
      GS_RETURN_IF_ERROR(CheckZeroOfMesh(job.zero, mesh, count));
      how.micro_batches = static_cast<int>(count);
      GS_ASSIGN_OR_RETURN(next.batch_size, MicroBatchSize(options, mesh, count));
      for (const std::string& split : mesh.has_pipeline() ? lists.splits : uncut) {
        next.split = split;
        all->push_back(next);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Configuration>> ListMeshes(const CompareOptions& options,
                                                      JobSweep sweep) {
  GS_ASSIGN_OR_RETURN(const MeshLists lists, ParseMeshLists(options.mesh));
  std::vector<Mesh> meshes;
  for (absl::string_view text : absl::StrSplit(options.mesh.meshes, ';')) {
    GS_ASSIGN_OR_RETURN(meshes.emplace_back(), ParseMesh(text));
  }
  if (options.replicas != std::vector<std::string>{"1"}) {
    return FlagError("data_parallel", "1 with --mesh", absl::StrJoin(options.replicas, ","));
  }
  if (!options.straggler.empty()) {
    return FlagError("straggler", "none with --mesh", options.straggler);
  }
  if (!options.workers.empty()) {
    return FlagError("workers", "none with --mesh, which says how many",
                     absl::StrJoin(options.workers, ","));
  }
  sweep.workers.clear();
  for (const Mesh& mesh : meshes) sweep.workers.push_back(mesh.world_size());
  std::vector<Configuration> all;
  std::vector<PlacedJob> jobs;
  for (const std::string& bandwidth : BandwidthsOf(options)) {
    for (const Mesh& mesh : meshes) {
      const size_t before = all.size();
      for (const PlacedJob& job : ListJobs(sweep, mesh.world_size(), bandwidth)) {
        if (!CanBeCut(job, mesh)) continue;
        GS_RETURN_IF_ERROR(AddArrangements(options, lists, mesh, job, &all));
        jobs.push_back(job);
      }
      if (all.size() > before) continue;
      return NoJobOfMesh(mesh.ToString());
    }
  }
  GS_RETURN_IF_ERROR(CheckAllOccur(sweep, jobs));
  return all;
}

// Without a mesh.
absl::StatusOr<std::vector<Configuration>> ListWhole(const CompareOptions& options,
                                                     const JobSweep& sweep) {
  GS_RETURN_IF_ERROR(CheckNoMesh(options.mesh));
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  for (int n : sweep.workers) GS_RETURN_IF_ERROR(straggler.CheckWorkers(n));
  GS_ASSIGN_OR_RETURN(const std::vector<int> replicas,
                      ParseCounts("data_parallel", options.replicas, kNoMost));
  std::vector<Configuration> all;
  std::vector<PlacedJob> jobs;
  for (const std::string& bandwidth : BandwidthsOf(options)) {
    for (int n : sweep.workers) {
      GS_ASSIGN_OR_RETURN(int64_t batch_size,
                          BatchPerWorker(options.batch_size, options.global_batch_size, n));
      if (batch_size == 0) batch_size = kDefaultBatchSize;
      for (PlacedJob job : ListJobs(sweep, n, bandwidth)) {
        jobs.push_back(job);
        for (int count : replicas) {
          job.arrangement.data_parallel = count;
          all.push_back({job, batch_size, ""});
        }
      }
    }
  }
  GS_RETURN_IF_ERROR(CheckAllOccur(sweep, jobs));
  return all;
}

// The value of --zero that one of --offload is, on a GPU.
absl::StatusOr<std::string> ZeroOfOffload(const std::string& offload) {
  const std::map<std::string, std::string> zeros = {
      {"none", "0"}, {"optimizer", "1"}, {"parameters", "3"}};
  const auto found = zeros.find(offload);
  if (found != zeros.end()) return found->second;
  return FlagError("offload", "some of none, optimizer and parameters", offload);
}

absl::Status ResolveOffloads(CompareOptions* options) {
  if (options->offloads == CompareOptions().offloads) return absl::OkStatus();
  std::vector<std::string> zeros;
  for (const std::string& offload : options->offloads) {
    GS_ASSIGN_OR_RETURN(zeros.emplace_back(), ZeroOfOffload(offload));
    if (zeros.back() != "0" && !options->compute.on_gpu()) {
      return FlagError("offload", "none with --device=cpu, where all is on the host", offload);
    }
  }
  if (zeros.empty()) return FlagError("offload", "some of none, optimizer and parameters", "");
  for (const char* link : {"nccl", "gloo"}) {
    if (Contains(options->links, link)) {
      return FlagError("link", "grpc, tcp or shm with --offload, which is to owners on the host",
                       link);
    }
  }
  if (options->zeros != CompareOptions().zeros) {
    return FlagError("zero", "none with --offload, which says it",
                     absl::StrJoin(options->zeros, ","));
  }
  options->zeros = zeros;
  return absl::OkStatus();
}

}  // namespace

std::string Describe(const Configuration& configuration) {
  const PlacedJob& job = configuration.job;
  std::string text = DescribeKind(job.spec);
  if (job.zero > 0) absl::StrAppend(&text, ", zero=", job.zero);
  if (const std::string how = Describe(job.arrangement); !how.empty()) {
    absl::StrAppend(&text, ", ", how);
  }
  if (!configuration.split.empty() && configuration.split != kAutoSplit) {
    absl::StrAppend(&text, ", cut before ", configuration.split);
  }
  if (job.servers > 0) {
    const bool dedicated = job.placement == Placement::kDedicated;
    absl::StrAppend(&text, ", ", dedicated ? "" : PlacementName(job.placement) + " ",
                    Count(job.servers, "server"));
  }
  absl::StrAppend(&text, ", ", Count(job.workers, "worker"));
  return job.bandwidth.empty() ? text : absl::StrCat(text, ", ", job.bandwidth);
}

absl::Status ResolveLinksAndDevice(const GpuChecker& check, CompareOptions* options) {
  GS_ASSIGN_OR_RETURN(const JobSweep sweep, SweepOf(*options));
  const int most = *std::max_element(sweep.workers.begin(), sweep.workers.end());
  const int gpus = GpusOf(most, std::max(1, options->ranks_per_gpu));
  GS_ASSIGN_OR_RETURN(options->compute.device,
                      ResolveDevice(options->compute.device, sweep.links, gpus, check));
  GS_RETURN_IF_ERROR(CheckRanksPerGpu(options->ranks_per_gpu, options->compute.device));
  GS_RETURN_IF_ERROR(ResolveOffloads(options));
  // Ranks that share a GPU, as they may with cuda:N, are refused by NCCL.
  if (options->ranks_per_gpu == 1 && options->links.empty() &&
      options->offloads == CompareOptions().offloads && options->bandwidths.empty() &&
      NcclVersion() != 0 && options->compute.device == "cuda" &&
      Contains(sweep.topologies, Topology::kRing)) {
    for (Link link : {Link::kGrpc, Link::kShm, Link::kNccl}) {
      options->links.push_back(LinkName(link));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Configuration>> ListConfigurations(const CompareOptions& options) {
  GS_ASSIGN_OR_RETURN(const JobSweep sweep, SweepOf(options));
  GS_RETURN_IF_ERROR(CheckEachOnce(options.bandwidths));
  GS_RETURN_IF_ERROR(CheckTraining(options, sweep.updates));
  GS_ASSIGN_OR_RETURN(std::vector<Configuration> all, options.mesh.meshes.empty()
                                                          ? ListWhole(options, sweep)
                                                          : ListMeshes(options, sweep));
  GS_RETURN_IF_ERROR(CheckData(options));
  return all;
}

std::vector<std::string> FlagsOfWorkers(const CompareOptions& options,
                                        const Configuration& configuration) {
  const JobSpec& spec = configuration.job.spec;
  std::vector<std::string> flags = {
      absl::StrCat("--topology=", TopologyName(spec.topology)),
      absl::StrCat("--link=", LinkName(spec.link)),
      absl::StrCat("--update=", UpdateSiteName(spec.update)),
      absl::StrCat("--batch_size=", configuration.batch_size),
      absl::StrCat("--model=", options.model),
      absl::StrCat("--stem=", options.stem),
      absl::StrCat("--data=", options.data),
      absl::StrCat("--steps=", options.steps),
      absl::StrCat("--warmup_steps=", options.warmup_steps),
      absl::StrCat("--threads=", options.threads),
      absl::StrCat("--lr=", options.lr),
      absl::StrCat("--seed=", options.seed),
      absl::StrCat("--timeout=", absl::FormatDuration(options.timeout)),
      "--log_every=1",
  };
  if (configuration.job.zero > 0) {
    flags.push_back(absl::StrCat("--zero=", configuration.job.zero));
  }
  const Arrangement& how = configuration.job.arrangement;
  if (!how.mesh.empty()) {
    flags.push_back(absl::StrCat("--mesh=", how.mesh));
    flags.push_back(absl::StrCat("--micro_batches=", how.micro_batches));
  }
  if (!how.schedule.empty()) {
    flags.push_back(absl::StrCat("--pipeline_schedule=", how.schedule));
    flags.push_back(absl::StrCat("--split=", configuration.split));
  }
  if (how.data_parallel > 1) {
    flags.push_back(absl::StrCat("--data_parallel=", how.data_parallel));
  }
  if (!options.straggler.empty()) {
    flags.push_back(absl::StrCat("--straggler=", options.straggler));
  }
  if (!spec.consistency.bulk()) {
    flags.push_back(absl::StrCat("--consistency=", ConsistencyName(spec.consistency)));
  }
  if (spec.codec.compresses()) {
    flags.push_back(absl::StrCat("--compression=", CodecName(spec.codec)));
  }
  const std::vector<std::string> compute = WorkerComputeFlags(options.compute);
  flags.insert(flags.end(), compute.begin(), compute.end());
  flags.insert(flags.end(), options.worker_flags.begin(), options.worker_flags.end());
  return flags;
}

}  // namespace gradsync
