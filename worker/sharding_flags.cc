#include "worker/sharding_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"
#include "core/plan/sharding.h"

ABSL_FLAG(int, zero, 0,
          "what owners (ranks of a ring, or servers) keep for all: 1: the optimizer's state, as "
          "--update=owner; 2: gradients too, of which a worker has only those of a few buckets at "
          "a time; 3: parameters too, which a worker gathers block by block, in forward and again "
          "in backward; 0: nothing, or what --update says; among the ranks along data, or along "
          "shard where --mesh has that");

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

}  // namespace

absl::Status ShardingFromFlags(JobOptions* job) { return ShardJob(absl::GetFlag(FLAGS_zero), job); }

absl::Status ShardJob(int zero, JobOptions* job) {
  GS_RETURN_IF_ERROR(CheckSharding(*job, zero));
  if (zero == 0) return absl::OkStatus();
  job->join.sync.job.update = UpdateSite::kOwner;
  if (zero >= 2) job->trainer.plan.slots.gradients = kZeroGradientSlots;
  job->trainer.shard_parameters = zero == 3;
  return absl::OkStatus();
}

}  // namespace gradsync
