#include "worker/pipeline_flags.h"

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/pipeline_schedule.h"
#include "worker/job_flags.h"

namespace {

constexpr char kSchedule[] = "1f1b";
constexpr char kSplit[] = "auto";

}  // namespace

ABSL_FLAG(
    std::string, mesh, "",
    "how the ranks are arranged, as data=2,pipeline=3: ranks along data, or shard, train on other "
    "samples (those along shard with --zero), those along pipeline hold other blocks of the model, "
    "those along tensor parts of its layers; the first named is the slowest in the order of ranks, "
    "and the product is the world size; empty: all along data");
ABSL_FLAG(
    int, model_parallel, 1,
    "stages of the model in this process, each computed by a thread of its own with its share "
    "of --threads, at least one; the same bits as --accumulate of as many batches");
ABSL_FLAG(std::string, pipeline_schedule, kSchedule,
          "with stages, who computes what when: naive (one micro-batch after the other), gpipe "
          "(all forwards, then all backwards) or 1f1b (in turns, which needs less memory)");
ABSL_FLAG(
    int64_t, micro_batches, 1,
    "with --mesh or --model_parallel: batches of --batch_size that make a step, and of which "
    "several are under "
    "way in a pipeline; the same parameters as with --accumulate of as many in one process, and "
    "running statistics of BatchNorm as of one batch of all");
ABSL_FLAG(std::string, split, kSplit,
          "with stages: the blocks (--describe_model) before which stages begin, as 4,7; or auto, "
          "by the time that each block takes on rank 0");
ABSL_FLAG(
    std::string, pipeline_link, "auto",
    "by what tensors pass between stages (--mesh=pipeline=N): grpc, tcp, shm (stages of one host), "
    "or auto, shm between any two neighbours that share a host");

namespace gradsync {
namespace {

// What stages in one process do not go together with.
absl::Status CheckLocalStages(const JobOptions& job) {
  const TrainerOptions& trainer = job.trainer;
  const auto refuse = [&](absl::string_view expected) {
    return FlagError("model_parallel", expected, absl::StrCat(trainer.model_parallel));
  };
  if (job.join.device.device != "cpu") {
    return refuse(absl::StrCat("1 with --device=", job.join.device.device,
                               ", since these stages are on the CPU"));
  }
  if (trainer.pipeline.mesh.cuts_model()) return refuse("1 with stages or slices (--mesh)");
  if (trainer.data_parallel > 1) return refuse("1 with --data_parallel");
  if (trainer.plan.slots.gradients > 0) {
    return refuse("1 with --zero=2 and 3, since micro-batches add up to whole gradients");
  }
  if (trainer.compute.precision != Precision::kFp32) {
    return refuse(absl::StrCat("1 with --precision=", PrecisionName(trainer.compute.precision)));
  }
  if (trainer.sync_batchnorm) {
    return refuse("1 with --sync_batchnorm, whose layers exchange in one order on all workers");
  }
  if (!trainer.straggler.nobody()) return refuse("1 with --straggler");
  if (job.seeing.trace.wanted()) return refuse("1 with --trace");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Link> ParsePartsLink(absl::string_view flag, absl::string_view text) {
  for (Link link : {Link::kAuto, Link::kGrpc, Link::kTcp, Link::kShm}) {
    if (LinkName(link) == text) return link;
  }
  return FlagError(flag, "auto, grpc, tcp or shm", text);
}

absl::Status PipelineFromFlags(JobOptions* job) {
  const std::string mesh = absl::GetFlag(FLAGS_mesh);
  const int64_t micro_batches = absl::GetFlag(FLAGS_micro_batches);
  const int local_stages = absl::GetFlag(FLAGS_model_parallel);
  PipelineOptions& pipeline = job->trainer.pipeline;
  GS_ASSIGN_OR_RETURN(pipeline.schedule,
                      ParsePipelineSchedule(absl::GetFlag(FLAGS_pipeline_schedule)));
  GS_ASSIGN_OR_RETURN(pipeline.mesh, Mesh::Parse(mesh, job->join.meet.world_size));
  pipeline.split = absl::GetFlag(FLAGS_split);
  job->join.mesh = pipeline.mesh;
  if (local_stages < 1) {
    return FlagError("model_parallel", "at least 1", absl::StrCat(local_stages));
  }
  job->trainer.model_parallel = local_stages;
  const bool whole = mesh.empty() && local_stages == 1;
  if (micro_batches < 1 || (micro_batches > 1 && whole)) {
    return FlagError("micro_batches",
                     whole ? "1 without --mesh and --model_parallel" : "at least 1",
                     absl::StrCat(micro_batches));
  }
  if (micro_batches > 1 && job->trainer.accumulate > 1) {
    return FlagError("accumulate", "1 with --micro_batches", absl::StrCat(job->trainer.accumulate));
  }
  if (micro_batches > 1) job->trainer.accumulate = micro_batches;
  job->trainer.pool_statistics = micro_batches > 1;
  const std::string link = absl::GetFlag(FLAGS_pipeline_link);
  GS_ASSIGN_OR_RETURN(job->model_links.stages, ParsePartsLink("pipeline_link", link));
  if (job->model_links.stages != Link::kAuto && !pipeline.mesh.has_pipeline()) {
    return FlagError("pipeline_link", "auto without stages on several ranks (--mesh=pipeline=N)",
                     link);
  }
  if (pipeline.mesh.has_pipeline() || local_stages > 1) return absl::OkStatus();
  for (const auto& [flag, plain, found] :
       {std::make_tuple("pipeline_schedule", kSchedule, absl::GetFlag(FLAGS_pipeline_schedule)),
        std::make_tuple("split", kSplit, pipeline.split)}) {
    if (found == plain) continue;
    return FlagError(flag,
                     absl::StrCat(plain, " without stages (--mesh=pipeline=N, --model_parallel=N)"),
                     found);
  }
  return absl::OkStatus();
}

absl::Status CheckPipeline(const JobOptions& job) {
  const TrainerOptions& trainer = job.trainer;
  const JobSpec& spec = job.join.sync.job;
  const Mesh& mesh = trainer.pipeline.mesh;
  const bool alone = spec.topology == Topology::kLocal;
  if (alone && mesh.replicas() > 1 && !absl::GetFlag(FLAGS_mesh).empty()) {
    return FlagError("topology",
                     absl::StrCat("ps or ring with several ranks along ",
                                  MeshDimensionName(mesh.samples()), " (--mesh)"),
                     "local");
  }
  if (trainer.pool_statistics && (trainer.sync_batchnorm || trainer.data_parallel > 1)) {
    return FlagError("micro_batches",
                     trainer.sync_batchnorm
                         ? "1 with --sync_batchnorm, whose statistics are of one batch"
                         : "1 with --data_parallel, whose replicas see a part of a batch each",
                     absl::StrCat(trainer.accumulate));
  }
  if (trainer.model_parallel > 1) return CheckLocalStages(job);
  if (!mesh.cuts_model()) return absl::OkStatus();
  const auto refuse = [&](absl::string_view flag, absl::string_view expected,
                          absl::string_view found) {
    const absl::string_view parts = mesh.has_pipeline() ? "stages" : "slices";
    return FlagError(flag, absl::StrCat(expected, " with ", parts, " (--mesh)"), found);
  };
  if (job.join.device.device != "cpu") {
    return refuse("device", "cpu", job.join.device.device);
  }
  if (!spec.consistency.bulk()) {
    return refuse("consistency", "bsp", ConsistencyName(spec.consistency));
  }
  if (spec.codec.compresses()) return refuse("compression", "none", CodecName(spec.codec));
  if (trainer.max_norm > 0) return refuse("max_norm", "0", absl::StrCat(trainer.max_norm));
  if (trainer.sync_batchnorm) return refuse("sync_batchnorm", "false", "true");
  if (trainer.ema_decay > 0) return refuse("ema_decay", "0", absl::StrCat(trainer.ema_decay));
  GS_RETURN_IF_ERROR(RefuseCheckpoints(
      trainer.checkpoint, mesh.has_pipeline() ? "with stages (--mesh)" : "with slices (--mesh)"));
  if (!trainer.straggler.nobody()) return refuse("straggler", "none", trainer.straggler.text());
  if (job.seeing.trace.wanted()) return refuse("trace", "none", job.seeing.trace.path);
  return absl::OkStatus();
}

}  // namespace gradsync
