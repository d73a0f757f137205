// What `train_bench --replay --mesh` is asked to do, checked, and the list of measurements that
// follows from it.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_MESH_CASES_H_
#define GRADSYNC_BENCHMARKS_REPLAY_MESH_CASES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "benchmarks/prediction/mesh_prediction.h"
#include "benchmarks/prediction/predict_options.h"
#include "benchmarks/profiles/mesh_stages.h"
#include "benchmarks/replay/replay_cases.h"
#include "core/group/mesh.h"
#include "proto/rank_spec.pb.h"
#include "proto/run_record.pb.h"
#include "proto/step_profile.pb.h"
#include "simulator/cluster.h"

namespace gradsync {

// A measurement of a mesh, and what predicts it.
struct MeshCase {
  ReplayCase replay;
  PredictedMesh predicted;
};

// Reads the profiles, of one model, which each micro-batch takes the nearest of, those of slices
// for meshes that have so many, and lists what ListMeshPredictions() makes of the flags, with all
// of --compute_scale and --bucket_bytes. Over gRPC; without bandwidths on this host alone. Errors:
// INVALID_ARGUMENT naming the flag or the file; those of ListMeshPredictions().
absl::StatusOr<std::vector<MeshCase>> ListMeshCases(const ReplaySweepOptions& options,
                                                    const MeshFlags& flags);

// What the simulator says of it; nothing without a network, which is what it knows. Blocks to
// compute. Errors: those of PredictMesh().
absl::StatusOr<absl::optional<proto::Run>> PredictMeshCase(const MeshCase& mesh,
                                                           const LinkConstants& constants);

// What the ranks of a replayed mesh are told, read back. Errors of all: INVALID_ARGUMENT for a spec
// that ListMeshCases() does not make.

// All profiles, the first one first.
std::vector<proto::StepProfile> ProfilesOfSpec(const proto::RankSpec::Replay& spec);

// The micro-batches of a replica's step.
absl::StatusOr<MicroBatches> BatchesOfSpec(const proto::RankSpec::Replay& spec);

// The stages that the ranks of `mesh` replay, without compute_scale.
absl::StatusOr<std::vector<RecordedStage>> StagesOfSpec(const proto::RankSpec::Replay& spec,
                                                        const Mesh& mesh);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_MESH_CASES_H_
