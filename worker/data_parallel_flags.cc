#include "worker/data_parallel_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/plan/kinds.h"

ABSL_FLAG(int, data_parallel, 1,
          "replicas of the model in this process, among which each batch is cut into equal parts, "
          "as nn.DataParallel does (docs/parallelism.md); each has its share of --threads, at "
          "least one; the same bits as --accumulate of as many batches of a part's size");

namespace gradsync {

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

}  // namespace gradsync
