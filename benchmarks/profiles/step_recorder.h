// Real training steps, turned into the profile of one (proto/step_profile.proto).

#ifndef GRADSYNC_BENCHMARKS_PROFILES_STEP_RECORDER_H_
#define GRADSYNC_BENCHMARKS_PROFILES_STEP_RECORDER_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "proto/step_profile.pb.h"
#include "worker/pipeline/slice_link.h"
#include "worker/train/trainer.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// The profile of the typical one of `steps`, which have `gradient_ready` for each tensor of `plan`:
// tensors in the order of the medians of their times; forward_us and update_us are medians, and
// backward_us is the median end of backward minus forward_us, so that no gradient is ready after
// it. Only times and tensors are set.
// Errors: INVALID_ARGUMENT when there is no step, or one that lacks times of gradients.
absl::StatusOr<proto::StepProfile> MedianStep(const Plan& plan,
                                              const std::vector<StepReport>& steps);

// Trains as `options` say, in this process and alone (topology local, the update at the worker),
// and returns the median of all steps but the first `warmup_steps`. What options says of recording
// and synchronising is set here. `on_step` is called after each step. Blocks until all are done.
//
// Where `options.pipeline` has slices, one of them trains as it would among the others, whose part
// of each exchange is there at once (NewLoneSliceLink()).
//
// Gradients are timed where the job has them: copied into their bucket, which is what the launch
// of an exchange waits for. Everything that describes the measurement is set but the command.
// Errors: those of Trainer.
absl::StatusOr<proto::StepProfile> RecordStep(
    TrainerOptions options, const std::function<void(const StepReport&)>& on_step);

// A SliceLink of slice 0 of `slices`, of which the others are not there: for who measures what a
// slice computes. An exchange returns at once. Others are taken to bring zeros to sums, and what
// this slice brings to gathers, so a model trains, to no purpose, with numbers of the usual size.
// Never fails.
std::unique_ptr<SliceLink> NewLoneSliceLink(int slices);

// Adds the blocks of the model to `profile`, which RecordStep() made with the same options: forward
// and backward of each by itself, in training, as a stage of a pipeline runs it, medians of as many
// runs as `options` have steps after `warmup_steps` others. From here on tensors of this process
// are counted (worker/train/count_tensor_memory.h). Blocks until all is done. Errors: those of
// OpenJobData() and CreateModel(); INTERNAL when LibTorch throws; INVALID_ARGUMENT for options that
// leave no run, and for a tensor of a block that the profile does not have.
absl::Status RecordBlocks(const TrainerOptions& options, proto::StepProfile* profile);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PROFILES_STEP_RECORDER_H_
