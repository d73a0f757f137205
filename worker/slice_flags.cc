#include "worker/slice_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/job_spec.h"
#include "worker/pipeline_flags.h"

ABSL_FLAG(
    bool, sequence_parallel, false,
    "with slices (--mesh=tensor=N): what passes between layers is cut along the sequence, and "
    "normalised and dropped in parts: less memory, as many bytes, more messages");

ABSL_FLAG(std::string, tensor_link, "auto",
          "by what slices (--mesh=tensor=N) exchange tensors: grpc, shm (slices of one host), or "
          "auto, shm where all slices of a model share a host");

namespace gradsync {

absl::Status SlicesFromFlags(JobOptions* job) {
  const Mesh& mesh = job->trainer.pipeline.mesh;
  job->trainer.pipeline.split_sequence = absl::GetFlag(FLAGS_sequence_parallel);
  GS_ASSIGN_OR_RETURN(job->join.slice_link,
                      ParsePartsLink("tensor_link", absl::GetFlag(FLAGS_tensor_link)));
  if (!mesh.has_slices()) {
    if (job->join.slice_link != Link::kAuto) {
      return FlagError("tensor_link", "auto without slices (--mesh=tensor=N)",
                       LinkName(job->join.slice_link));
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

}  // namespace gradsync
