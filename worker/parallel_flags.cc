#include "worker/parallel_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/sharding.h"
#include "worker/pipeline_flags.h"

ABSL_FLAG(int, data_parallel, 1,
          "replicas of the model in this process, among which each batch is cut into equal parts, "
          "as nn.DataParallel does (docs/use/parallelism.md); each has its share of --threads, at "
          "least one; the same bits as --accumulate of as many batches of a part's size");

ABSL_FLAG(
    bool, sequence_parallel, false,
    "with slices (--mesh=tensor=N): what passes between layers is cut along the sequence, and "
    "normalised and dropped in parts: less memory, as many bytes, more messages");

ABSL_FLAG(std::string, tensor_link, "auto",
          "by what slices (--mesh=tensor=N) exchange tensors: grpc, tcp, shm (slices of one host), "
          "or auto, shm where all slices of a model share a host");

ABSL_FLAG(int, zero, 0,
          "what owners (ranks of a ring, or servers) keep for all: 1: the optimizer's state, as "
          "--update=owner; 2: gradients too, of which a worker has only those of a few buckets at "
          "a time; 3: parameters too, which a worker gathers block by block, in forward and again "
          "in backward; 0: nothing, or what --update says; among the ranks along data, or along "
          "shard where --mesh has that");

ABSL_FLAG(
    std::string, offload, "none",
    "with a GPU, what is kept and done on the host instead, by owners over a link of the host: "
    "none; optimizer: its state and the update (as --update=owner); parameters: these too, "
    "which a worker gathers block by block (as --zero=3)");

namespace gradsync {
namespace {

absl::Status CheckShardedParameters(const JobOptions& job) {
  const auto refuse = [](absl::string_view expected) {
    return FlagError("zero", absl::StrCat("0 to 2 with ", expected), "3");
  };
  const TrainerOptions& trainer = job.trainer;
  if (trainer.pipeline.mesh.has_pipeline()) return refuse("stages (--mesh)");
  if (trainer.ema_decay > 0) return refuse("--ema_decay");
  return absl::OkStatus();
}

absl::Status CheckSharding(const JobOptions& job, int zero) {
  const std::string found = absl::StrCat(zero);
  const auto refuse = [&found](absl::string_view expected) {
    return FlagError("zero", expected, found);
  };
  GS_RETURN_IF_ERROR(CheckZero(zero, job.join.sync.job));
  const int shards = job.join.mesh.size(MeshDimension::kShard);
  if (zero == 0 && shards > 1) {
    return refuse(absl::StrCat("1 to 3 with shard=", shards, " (--mesh)"));
  }
  if (zero < 2) return absl::OkStatus();
  if (job.trainer.pipeline.mesh.has_slices()) return refuse("0 or 1 with slices (--mesh)");
  if (job.trainer.accumulate > 1) {
    return refuse(
        "0 or 1 with --accumulate or --micro_batches, whose sums are whole gradients on each "
        "worker");
  }
  if (job.trainer.max_norm > 0) {
    return refuse("0 or 1 with --max_norm, which needs all gradients at once");
  }
  return zero < 3 ? absl::OkStatus() : CheckShardedParameters(job);
}

constexpr char kNone[] = "none";
constexpr char kOptimizer[] = "optimizer";
constexpr char kParameters[] = "parameters";

absl::Status Refuse(absl::string_view expected, absl::string_view found) {
  return FlagError("offload", expected, found);
}

// Whether there can be owners on the host for what is on a GPU.
absl::Status CheckOwners(const std::string& offload, const JobOptions& job) {
  if (job.join.device.device == "cpu") {
    return Refuse("none with --device=cpu, where all is on the host", offload);
  }
  const Link link = job.join.sync.job.link;
  if (BetweenGpus(link)) {
    return Refuse(absl::StrCat("none with --link=", LinkName(link),
                               ", whose owners update on GPUs (or --link=grpc, tcp or shm)"),
                  offload);
  }
  const BackendTrait* const trait = FindBackend(job.join.sync.job.topology, link);
  if (trait != nullptr && !trait->updates_at_owner) {
    return Refuse(absl::StrCat("none with --link=", LinkName(link),
                               ", which has no reduce-scatter, and so no owners"),
                  offload);
  }
  return absl::OkStatus();
}

absl::Status OffloadParameters(JobOptions* job) {
  const int zero = absl::GetFlag(FLAGS_zero);
  if (zero == 1 || zero == 2) {
    return FlagError("zero", "3 or nothing with --offload=parameters", absl::StrCat(zero));
  }
  const absl::Status sharded = ShardJob(3, job);
  if (sharded.ok()) return sharded;
  return Refuse(absl::StrCat("none or optimizer where --zero=3, which parameters on the host are, "
                             "is refused (",
                             sharded.message(), ")"),
                kParameters);
}

}  // namespace

absl::Status DataParallelFromFlags(JobOptions* job) {
  TrainerOptions& trainer = job->trainer;
  const int replicas = absl::GetFlag(FLAGS_data_parallel);
  const auto refuse = [replicas](absl::string_view expected) {
    return FlagError("data_parallel", expected, absl::StrCat(replicas));
  };
  if (replicas < 1) return refuse("at least 1");
  if (replicas == 1) return absl::OkStatus();
  if (job->join.device.device != "cpu") {
    return refuse(absl::StrCat("1 with --device=", job->join.device.device,
                               ", since replicas are on the CPU"));
  }
  if (trainer.pipeline.mesh.cuts_model()) return refuse("1 with stages or slices (--mesh)");
  if (trainer.plan.slots.gradients > 0) {
    return refuse("1 with --zero=2 and 3, since parts add up to whole gradients");
  }
  if (trainer.compute.precision != Precision::kFp32) {
    return refuse(absl::StrCat("1 with --precision=", PrecisionName(trainer.compute.precision)));
  }
  if (trainer.sync_batchnorm) {
    return refuse("1 with --sync_batchnorm, in which one model of a process takes part");
  }
  if (trainer.batch_size % replicas != 0 || trainer.batch_size < replicas) {
    return FlagError("batch_size", absl::StrCat("a multiple of --data_parallel=", replicas),
                     absl::StrCat(trainer.batch_size));
  }
  trainer.data_parallel = replicas;
  return absl::OkStatus();
}

absl::Status SlicesFromFlags(JobOptions* job) {
  const Mesh& mesh = job->trainer.pipeline.mesh;
  job->trainer.pipeline.split_sequence = absl::GetFlag(FLAGS_sequence_parallel);
  GS_ASSIGN_OR_RETURN(job->model_links.slices,
                      ParsePartsLink("tensor_link", absl::GetFlag(FLAGS_tensor_link)));
  if (!mesh.has_slices()) {
    if (job->model_links.slices != Link::kAuto) {
      return FlagError("tensor_link", "auto without slices (--mesh=tensor=N)",
                       LinkName(job->model_links.slices));
    }
    if (!job->trainer.pipeline.split_sequence) return absl::OkStatus();
    return FlagError("sequence_parallel", "false without slices (--mesh=tensor=N)", "true");
  }
  if (mesh.has_pipeline()) {
    return FlagError("mesh",
                     absl::StrCat("tensor=", mesh.size(MeshDimension::kTensor),
                                  " with no other dimension than data or shard"),
                     mesh.ToString());
  }
  return absl::OkStatus();
}

absl::Status ShardingFromFlags(JobOptions* job) { return ShardJob(absl::GetFlag(FLAGS_zero), job); }

absl::Status ShardJob(int zero, JobOptions* job) {
  GS_RETURN_IF_ERROR(CheckSharding(*job, zero));
  if (zero == 0) return absl::OkStatus();
  job->join.sync.job.update = UpdateSite::kOwner;
  if (zero >= 2) job->trainer.plan.slots.gradients = kZeroGradientSlots;
  job->trainer.shard_parameters = zero == 3;
  return absl::OkStatus();
}

absl::Status OffloadFromFlags(JobOptions* job) {
  const std::string offload = absl::GetFlag(FLAGS_offload);
  if (offload == kNone) return absl::OkStatus();
  if (offload != kOptimizer && offload != kParameters) {
    return Refuse("none, optimizer or parameters", offload);
  }
  GS_RETURN_IF_ERROR(CheckOwners(offload, *job));
  if (offload == kParameters) GS_RETURN_IF_ERROR(OffloadParameters(job));
  job->join.sync.job.update = UpdateSite::kOwner;
  job->offload = offload;
  return absl::OkStatus();
}

absl::Status CheckOffload(const JobOptions& job) {
  if (job.offload.empty() || job.join.sync.gpu != nullptr) return absl::OkStatus();
  return Refuse(absl::StrCat("none where --device=", job.join.device.device, " finds no GPU"),
                job.offload);
}

}  // namespace gradsync
