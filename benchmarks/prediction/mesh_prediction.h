// What the simulator says about a job whose model is cut into stages or slices, and what `predict`
// prints of it.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_MESH_PREDICTION_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_MESH_PREDICTION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/prediction/prediction.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "core/group/mesh.h"
#include "core/plan/pipeline_schedule.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// A job as //worker is told by the flags of these names.
struct PredictedMesh {
  // Its workers are those of the mesh, its batch that of a micro-batch; with a global batch the
  // micro-batches are parts of that, the last one the smallest. Straggler by rank of the job.
  PredictedJob job;
  Mesh mesh;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  int64_t micro_batches = 1;
  int64_t global_batch_size = 0;  // 0: none
  std::string split = "auto";     // or as ParseSplit() takes it; auto balances the profile's blocks
  bool split_sequence = false;    // of slices (--sequence_parallel)
};

// The predicted run: what PredictRun() has, and of the pipeline the mesh, schedule, micro-batches,
// split, bubble_share and activation_bytes. `scaling_efficiency` is that of workers which lose
// neither to the bubble nor to communication. Profiles are all of one model. With slices they were
// recorded of one of so many, which has its times, its part of each tensor and what it keeps; other
// meshes take those of the whole model. Of several, each pass takes its times from the one whose
// batch is nearest to the micro-batch's; forward and backward are taken to grow with the samples
// from there. A job whose owners keep gradients for all (--zero=2 and 3) is what PredictRun() says
// of it, on a mesh that does not cut the model and with one micro-batch. Pure; thread-safe; blocks
// to compute.
//
// Errors: INVALID_ARGUMENT for a profile without blocks (CheckHasBlocks()), none for the mesh's
// slices (ProfilesOfSlices()), a number or combination that cannot be, a split that leaves a stage
// without parameters; those of SimulatePipeline().
absl::StatusOr<proto::Run> PredictMesh(const std::vector<proto::StepProfile>& profiles,
                                       const PredictedMesh& mesh);

// A table of predicted runs of meshes. Of those with the same workers and bandwidth the one with
// most samples per second is marked, or all within 1 % of it. Pure.
std::string MeshTable(const google::protobuf::RepeatedPtrField<proto::Run>& runs);

// One sentence: which arrangement of the workers is fastest at the bandwidth of the last run, and
// what it gains over data parallelism alone, if that is among them. Arrangements within 1 % count
// as equal, and of these the one with the fewest stages, then the fewest hosts, then the one that
// keeps least in memory wins. Errors: INVALID_ARGUMENT for no runs.
absl::StatusOr<std::string> AdviseMesh(const google::protobuf::RepeatedPtrField<proto::Run>& runs);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_MESH_PREDICTION_H_
