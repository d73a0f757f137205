// What `predict` is asked about meshes, checked, and the list of jobs that follows from it.

#ifndef GRADSYNC_BENCHMARKS_PREDICTION_MESH_OPTIONS_H_
#define GRADSYNC_BENCHMARKS_PREDICTION_MESH_OPTIONS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/options/mesh_flags.h"
#include "benchmarks/prediction/mesh_prediction.h"
#include "benchmarks/prediction/predict_options.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// The jobs by bandwidth, mesh, topology, schedule, micro-batches and split; `options` says
// everything else, --workers only with "auto". Left out are servers fewer than stages, mixed
// placement, codecs and consistencies that jobs with stages or slices do not have, servers where a
// stage has one replica and rings were asked for too, all schedules but one without stages, and
// with "auto" more stages than blocks. Under "auto" a step has the global batch, or as many samples
// as all workers have with the profile's batch each, and arrangements that cannot cut it evenly
// among replicas, or into so many micro-batches, or whose owners cannot keep so much for all
// (--zero), are left out. `profiles` are all that there are of
// the model, at least one. Pure. Errors: INVALID_ARGUMENT naming the flag; those of
// CheckHasBlocks().
absl::StatusOr<std::vector<PredictedMesh>> ListMeshPredictions(
    const PredictOptions& options, const MeshFlags& flags,
    const std::vector<proto::StepProfile>& profiles);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PREDICTION_MESH_OPTIONS_H_
