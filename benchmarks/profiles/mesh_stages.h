// A recorded model cut into stages: what each computes, sends and exchanges.

#ifndef GRADSYNC_BENCHMARKS_PROFILES_MESH_STAGES_H_
#define GRADSYNC_BENCHMARKS_PROFILES_MESH_STAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "core/plan/slice_traffic.h"
#include "proto/step_profile.pb.h"
#include "worker/pipeline/split.h"

namespace gradsync {

// The samples of a step's micro-batches: `count` of `each`, but the last one of `last`.
struct MicroBatches {
  int64_t count = 1;
  int64_t each = 1;
  int64_t last = 1;

  int64_t samples() const { return (count - 1) * each + last; }
};

// `samples` cut into `count` micro-batches, of which the last is at most as large as the others.
// Errors: INVALID_ARGUMENT naming --micro_batches where some would be empty.
absl::StatusOr<MicroBatches> CutBatch(int64_t samples, int64_t count);

// Where a pass of a slice waits for the others.
struct RecordedMeeting {
  double after_us = 0;  // of the pass
  SliceMeeting meeting;
};

// A micro-batch on a stage, or on a slice.
struct RecordedPass {
  double forward_us = 0;
  double backward_us = 0;
  int64_t input_bytes = 0;                        // from the stage before; 0 for the first
  int64_t output_bytes = 0;                       // to the stage behind; 0 for the last
  std::vector<RecordedMeeting> forward_meetings;  // of slices only, in their order
  std::vector<RecordedMeeting> backward_meetings;
};

struct RecordedStage {
  BlockRange blocks;
  RecordedPass each;
  RecordedPass last;
  Plan plan;                            // Part() of the whole model's plan
  std::vector<double> bucket_ready_us;  // since backward of the last micro-batch began
  double update_us = 0;
  int64_t kept_bytes = 0;        // of a whole micro-batch between its forward and its backward
  int64_t recomputed_bytes = 0;  // beside these, during backward (WithCheckpointing())
};

// Those of `profiles` that a mesh with so many slices, 1 for none, is predicted from. Errors:
// INVALID_ARGUMENT naming --profile where there is none.
absl::StatusOr<std::vector<proto::StepProfile>> ProfilesOfSlices(
    const std::vector<proto::StepProfile>& profiles, int slices, bool split_sequence);

// The one of `profiles` whose batch is nearest to `samples`, by their ratio.
const proto::StepProfile& ProfileNear(const std::vector<proto::StepProfile>& profiles,
                                      int64_t samples);

// The cut: as `split` says, or "auto", by which the slowest stage takes the least. Errors: those of
// CheckHasBlocks(), ParseSplit() and BalanceBlocks().
absl::StatusOr<StageSplit> SplitOf(const proto::StepProfile& profile, const std::string& split,
                                   int stages);

// The stages of `split`; `options.world_size` is the number of replicas. `scale` multiplies all
// times. `profiles` have blocks and are of one model; those of slices are for a single stage, which
// is then a slice. Errors: INVALID_ARGUMENT for profiles of
// different models, and a stage without parameters; those of ProfilePlan() and Plan::Part().
absl::StatusOr<std::vector<RecordedStage>> StagesOf(const std::vector<proto::StepProfile>& profiles,
                                                    const StageSplit& split,
                                                    const MicroBatches& batches, double scale,
                                                    const PlanOptions& options,
                                                    double momentum = 0);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PROFILES_MESH_STAGES_H_
