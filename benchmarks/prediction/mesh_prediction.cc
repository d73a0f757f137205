#include "benchmarks/prediction/mesh_prediction.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/sharding.h"
#include "simulator/pipeline.h"

namespace gradsync {
namespace {

// The steps that are simulated: after the first they repeat.
constexpr int kSteps = 3;

// As //worker has it, unless it is told otherwise; of the optimizer only its state's size matters.
constexpr double kMomentum = 0.9;

// What a step is made of.
absl::StatusOr<MicroBatches> BatchesOf(const proto::StepProfile& profile,
                                       const PredictedMesh& mesh) {
  const int replicas = mesh.mesh.replicas();
  if (mesh.global_batch_size > 0) {
    if (mesh.global_batch_size % replicas != 0) {
      return absl::InvalidArgumentError(absl::StrCat("global batch: expected a multiple of ",
                                                     replicas, " replicas, found ",
                                                     mesh.global_batch_size));
    }
    return CutBatch(mesh.global_batch_size / replicas, mesh.micro_batches);
  }
  const int64_t each =
      mesh.job.batch_size > 0 ? mesh.job.batch_size : std::max(1, profile.batch_size());
  return CutBatch(each * mesh.micro_batches, mesh.micro_batches);
}

std::vector<PassMeeting> Seconds(const std::vector<RecordedMeeting>& meetings) {
  std::vector<PassMeeting> seconds;
  for (const RecordedMeeting& meeting : meetings) {
    seconds.push_back({1e-6 * meeting.after_us, meeting.meeting});
  }
  return seconds;
}

StagePass Seconds(const RecordedPass& pass) {
  return {1e-6 * pass.forward_us, 1e-6 * pass.backward_us, pass.output_bytes,
          Seconds(pass.forward_meetings), Seconds(pass.backward_meetings)};
}

// Of `stages`, or of slices, which are all as the only one.
SimulatedPipeline PipelineOf(const std::vector<RecordedStage>& stages, const PredictedMesh& mesh) {
  SimulatedPipeline pipeline;
  pipeline.micro_batches = mesh.micro_batches;
  pipeline.steps = kSteps;
  pipeline.schedule = mesh.schedule;
  pipeline.slices = mesh.mesh.has_slices();
  const MeshDimension parts = pipeline.slices ? MeshDimension::kTensor : MeshDimension::kPipeline;
  pipeline.ranks.resize(mesh.mesh.size(parts));
  for (int rank = 0; rank < mesh.mesh.world_size(); ++rank) {
    pipeline.ranks[mesh.mesh.Coordinate(rank, parts)].push_back(rank);
  }
  for (int part = 0; part < mesh.mesh.size(parts); ++part) {
    const int s = pipeline.slices ? 0 : part;
    SimulatedStage stage;
    stage.each = Seconds(stages[s].each);
    stage.last = Seconds(stages[s].last);
    stage.plan = stages[s].plan;
    for (double us : stages[s].bucket_ready_us) {
      stage.bucket_ready.push_back(std::min(1e-6 * us, stage.last.backward));
    }
    stage.update = 1e-6 * stages[s].update_us;
    pipeline.stages.push_back(std::move(stage));
  }
  return pipeline;
}

// What a rank keeps between forward and backward, of the stage that keeps most.
double ActivationBytes(const std::vector<RecordedStage>& stages, const PredictedMesh& mesh) {
  const int count = static_cast<int>(stages.size());
  int64_t most = 0;
  for (int s = 0; s < count; ++s) {
    most = std::max(most,
                    stages[s].kept_bytes * InFlight(mesh.schedule, count, s, mesh.micro_batches) +
                        stages[s].recomputed_bytes);
  }
  return static_cast<double>(most);
}

// Of the rank that keeps most; of servers nothing is said.
double MemoryBytes(const std::vector<RecordedStage>& stages, const JobSpec& spec) {
  int64_t most = 0;
  for (const RecordedStage& stage : stages) {
    const MemoryUse use = spec.topology == Topology::kPs
                              ? PsWorkerMemory(stage.plan, spec.update)
                              : RingMemory(stage.plan, spec.update, /*rank=*/0);
    most = std::max(most, use.total());
  }
  return static_cast<double>(most);
}

// Of all stages, on one rank that has them all.
double ComputeSeconds(const SimulatedPipeline& pipeline) {
  double seconds = 0;
  for (const SimulatedStage& stage : pipeline.stages) {
    seconds += static_cast<double>(pipeline.micro_batches - 1) *
                   (stage.each.forward + stage.each.backward) +
               stage.last.forward + stage.last.backward + stage.update;
  }
  return seconds;
}

void SetMesh(const PredictedMesh& mesh, proto::Run* run) {
  run->set_global_batch_size(static_cast<double>(mesh.global_batch_size));
  run->set_mesh(mesh.mesh.ToString());
  run->set_micro_batches(static_cast<int>(mesh.micro_batches));
}

// With buckets that share memory a step stops now and then.
absl::StatusOr<proto::Run> PredictSharded(const proto::StepProfile& profile,
                                          const PredictedMesh& mesh, const MicroBatches& batches) {
  if (mesh.mesh.cuts_model() || mesh.micro_batches > 1) {
    return FlagError("zero", "0 or 1 with a mesh that cuts the model, or several micro-batches",
                     absl::StrCat(mesh.job.placed.zero));
  }
  PredictedJob job = mesh.job;
  job.placed.workers = mesh.mesh.world_size();
  job.batch_size = batches.each;
  GS_ASSIGN_OR_RETURN(proto::Run run, PredictRun(profile, job));
  SetMesh(mesh, &run);
  run.set_bubble_share(1 - run.scaling_efficiency());
  double kept = 0, recomputed = 0;
  for (const proto::ProfiledBlock& block : profile.blocks()) {
    kept += block.kept_bytes();
    recomputed = std::max(recomputed, block.recomputed_bytes());
  }
  run.set_activation_bytes((kept + recomputed) * static_cast<double>(batches.each));
  return run;
}

void SetTimes(const PipelinePrediction& step, proto::Run* run) {
  run->set_step_ms_p50(1e3 * step.step);
  if (step.step > 0) run->set_steps_per_s(1 / step.step);
  // Of the first stage, which begins each step and ends it.
  const PipelinePrediction::Stage& first = step.stages[0];
  run->set_exposed_ms_p50(1e3 * first.exposed);
  run->mutable_breakdown_ms()->set_exposed(1e3 * first.exposed);
  run->mutable_breakdown_ms()->set_update(1e3 * first.update);
  run->set_bubble_share(step.bubble_share);
  run->set_wire_tx_bytes_max_node(step.tx_bytes_max_host);
  run->set_wire_rx_bytes_max_node(step.rx_bytes_max_host);
}

// Differences below it are not worth a sentence.
constexpr double kEqual = 0.01;

bool Together(const proto::Run& a, const proto::Run& b) {
  return a.workers() == b.workers() && a.bandwidth() == b.bandwidth();
}

int Size(const proto::Run& run, MeshDimension dimension) {
  const absl::StatusOr<Mesh> mesh = Mesh::Parse(run.mesh(), run.workers());
  return mesh.ok() ? mesh->size(dimension) : 1;
}

int Stages(const proto::Run& run) { return Size(run, MeshDimension::kPipeline); }

// Ranks that have parts of one model.
int Parts(const proto::Run& run) { return Stages(run) * Size(run, MeshDimension::kTensor); }

// Beside those of the workers.
int ServerHosts(const proto::Run& run) {
  return run.placement() == "dedicated" ? run.servers() : 0;
}

std::string Servers(const proto::Run& run) {
  return run.servers() > 0 ? absl::StrCat(run.servers(), " ", run.placement()) : "-";
}

std::vector<std::string> Row(const proto::Run& run, const std::string& mark) {
  const double bytes = std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node());
  return {run.mesh(),
          run.topology(),
          Servers(run),
          run.update(),
          absl::StrCat(run.zero()),
          Stages(run) > 1 ? run.pipeline_schedule() : "-",
          absl::StrCat(run.micro_batches(), " x ", run.batch_size()),
          run.split().empty() ? "-" : run.split(),
          run.bandwidth(),
          Ms(run.step_ms_p50()),
          Percent(run.bubble_share()),
          Percent(run.scaling_efficiency()),
          absl::StrFormat("%.1f", run.samples_per_s()),
          absl::StrFormat("%.1f", 1e-6 * bytes),
          absl::StrFormat("%.1f", 1e-6 * run.activation_bytes()),
          absl::StrFormat("%.1f", 1e-6 * run.worker_memory_bytes()),
          mark};
}

// "data=2,pipeline=4 (1f1b, 8 micro-batches of 16, cut before 2,5,9), ring".
std::string DescribeArrangement(const proto::Run& run) {
  std::string text = run.mesh();
  const std::string batches =
      run.micro_batches() == 1
          ? ""
          : absl::StrCat(run.micro_batches(), " micro-batches of ", run.batch_size());
  if (Stages(run) > 1) {
    absl::StrAppend(&text, " (", run.pipeline_schedule(), ", ", batches.empty() ? "" : batches,
                    batches.empty() ? "" : ", ", "cut before ", run.split(), ")");
  } else if (!batches.empty()) {
    absl::StrAppend(&text, " (", batches, ")");
  }
  absl::StrAppend(&text, ", ", run.topology());
  if (run.servers() > 0) {
    absl::StrAppend(&text, " with ", Count(run.servers(), "server"), " ", run.placement());
  }
  return text;
}

}  // namespace

absl::StatusOr<proto::Run> PredictMesh(const std::vector<proto::StepProfile>& recorded,
                                       const PredictedMesh& mesh) {
  GS_ASSIGN_OR_RETURN(
      const std::vector<proto::StepProfile> profiles,
      ProfilesOfSlices(recorded, mesh.mesh.size(MeshDimension::kTensor), mesh.split_sequence));
  for (const proto::StepProfile& profile : profiles) {
    GS_RETURN_IF_ERROR(ValidateStepProfile(profile));
    GS_RETURN_IF_ERROR(CheckHasBlocks(profile));
  }
  if (mesh.mesh.has_pipeline() && mesh.mesh.has_slices()) {
    return FlagError("mesh", "stages or slices, which no job has both of", mesh.mesh.ToString());
  }
  PlacedJob placed = mesh.job.placed;
  placed.workers = mesh.mesh.world_size();
  placed.spec.link = Link::kGrpc;
  GS_RETURN_IF_ERROR(CheckJob(&placed));
  if (!(mesh.job.compute_scale >= 0) || !std::isfinite(mesh.job.compute_scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("compute_scale: expected at least 0, found ", mesh.job.compute_scale));
  }
  GS_ASSIGN_OR_RETURN(const MicroBatches batches, BatchesOf(profiles[0], mesh));
  if (placed.zero >= 2) return PredictSharded(ProfileNear(profiles, batches.each), mesh, batches);
  const int stage_count = mesh.mesh.size(MeshDimension::kPipeline);
  const proto::StepProfile& near = ProfileNear(profiles, batches.each);
  GS_ASSIGN_OR_RETURN(const StageSplit split, SplitOf(near, mesh.split, stage_count));
  PlanOptions options;
  options.world_size = mesh.mesh.replicas();
  options.bucket_bytes = mesh.job.bucket_bytes;
  options.first_bucket_bytes = mesh.job.first_bucket_bytes;
  options.chunk_bytes = mesh.job.chunk_bytes;
  options.codec = placed.spec.codec;
  GS_ASSIGN_OR_RETURN(
      const std::vector<RecordedStage> stages,
      StagesOf(profiles, split, batches, mesh.job.compute_scale, options, kMomentum));
  const SimulatedPipeline pipeline = PipelineOf(stages, mesh);
  GS_ASSIGN_OR_RETURN(Cluster cluster, ClusterOfJob(placed, mesh.job.constants));
  cluster.slowness = mesh.job.slowness;
  GS_ASSIGN_OR_RETURN(const PipelinePrediction step, SimulatePipeline(pipeline, cluster));

  proto::Run run;
  run.set_library("gradsync");
  SetKind(placed.spec, &run);
  SetPlaced(placed, &run);
  run.set_model(profiles[0].model());
  run.set_batch_size(static_cast<int>(batches.each));
  run.set_threads(profiles[0].threads());
  SetMesh(mesh, &run);
  run.set_pipeline_schedule(std::string(PipelineScheduleName(mesh.schedule)));
  run.set_split(SplitToString(split));
  run.set_activation_bytes(ActivationBytes(stages, mesh));
  run.set_worker_memory_bytes(MemoryBytes(stages, placed.spec));
  for (const SimulatedStage& stage : pipeline.stages) {
    run.set_bytes(run.bytes() + static_cast<double>(stage.plan.total_bytes()));
  }
  SetTimes(step, &run);
  if (step.step > 0) {
    const auto replicas = static_cast<double>(options.world_size);
    run.set_samples_per_s(replicas * static_cast<double>(batches.samples()) / step.step);
    run.set_scaling_efficiency(ComputeSeconds(pipeline) /
                               (static_cast<double>(pipeline.stages.size()) * step.step));
  }
  return run;
}

std::string MeshTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs) {
  std::vector<std::vector<std::string>> rows;
  for (const proto::Run& run : runs) {
    int rivals = 0, equals = 0;
    bool fastest = true;
    for (const proto::Run& other : runs) {
      if (!Together(run, other)) continue;
      const double ratio = other.samples_per_s() / run.samples_per_s();
      ++rivals;
      equals += ratio >= 1 - kEqual;
      fastest &= ratio <= 1 + kEqual;
    }
    rows.push_back(Row(run, !fastest || rivals == 1 ? ""
                            : equals == 1           ? "fastest"
                                                    : "among the fastest"));
  }
  return FormatTable({{"mesh", Align::kLeft},
                      {"topology", Align::kLeft},
                      {"servers", Align::kLeft},
                      {"update", Align::kLeft},
                      {"zero"},
                      {"schedule", Align::kLeft},
                      {"micro-\nbatches"},
                      {"split", Align::kLeft},
                      {"bandwidth", Align::kRight},
                      {"step\nms"},
                      {"bubble"},
                      {"effi-\nciency"},
                      {"samples/s"},
                      {"busiest host\nMB per step"},
                      {"activations\nMB"},
                      {"worker keeps\nMB"},
                      {"", Align::kLeft}},
                     rows);
}

absl::StatusOr<std::string> AdviseMesh(const google::protobuf::RepeatedPtrField<proto::Run>& runs) {
  if (runs.empty()) return absl::InvalidArgumentError("advice: expected runs, found none");
  const proto::Run& asked = runs[runs.size() - 1];
  double most = 0;
  const proto::Run* alone = nullptr;  // the best of those that do not cut the model
  for (const proto::Run& run : runs) {
    if (!Together(run, asked)) continue;
    most = std::max(most, run.samples_per_s());
    if (Parts(run) > 1) continue;
    if (alone == nullptr || run.samples_per_s() > alone->samples_per_s()) alone = &run;
  }
  const auto price = [](const proto::Run& run) {
    return std::make_tuple(Parts(run), ServerHosts(run), run.activation_bytes());
  };
  const proto::Run* best = nullptr;
  for (const proto::Run& run : runs) {
    if (!Together(run, asked) || run.samples_per_s() < most * (1 - kEqual)) continue;
    if (best == nullptr || price(run) < price(*best)) best = &run;
  }
  const std::string use =
      absl::StrCat("For ", best->model(), " on ", Count(best->workers(), "worker"), " at ",
                   best->bandwidth(), " use ", DescribeArrangement(*best), ": ",
                   absl::StrFormat("%.1f samples per s, %s ms per step", best->samples_per_s(),
                                   Ms(best->step_ms_p50())));
  if (alone == nullptr) return absl::StrCat(use, ".");
  if (Parts(*best) == 1) return absl::StrCat(use, "; no mesh that cuts the model gains more.");
  return absl::StrFormat("%s, %.0f%% more than data parallelism alone, %s (%.1f samples per s).",
                         use, 100 * (best->samples_per_s() / alone->samples_per_s() - 1),
                         DescribeArrangement(*alone), alone->samples_per_s());
}

}  // namespace gradsync
