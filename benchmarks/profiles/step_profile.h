// Step profiles (proto/step_profile.proto): read, checked, and turned into a plan with the times at
// which its buckets become ready.

#ifndef GRADSYNC_BENCHMARKS_PROFILES_STEP_PROFILE_H_
#define GRADSYNC_BENCHMARKS_PROFILES_STEP_PROFILE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/plan.h"
#include "core/plan/step_order.h"
#include "proto/step_profile.pb.h"

namespace gradsync {

// Parses JSON and validates; `what`, a path, begins every error.
// Errors: DATA_LOSS when it is not JSON of a profile; otherwise those of ValidateStepProfile().
absl::StatusOr<proto::StepProfile> ParseStepProfile(absl::string_view json, absl::string_view what);

// As ParseStepProfile() of the file's content. Blocks while it reads.
// Errors: also NOT_FOUND, or the errno's code, when the file cannot be read.
absl::StatusOr<proto::StepProfile> ReadStepProfile(const std::string& path);

// Errors: INVALID_ARGUMENT naming the field, what was expected and what was found: a profile needs
// a model, tensors with at least one element each, times that are finite and not negative, and
// `ready_us` that never falls and lies within forward and backward.
absl::Status ValidateStepProfile(const proto::StepProfile& profile);

// The plan of the profile's tensors, packed in the order in which they become ready, with SGD.
// Errors: those of Plan::Create().
absl::StatusOr<Plan> ProfilePlan(const proto::StepProfile& profile, const PlanOptions& options,
                                 double momentum = 0);

// Microseconds after the step's begin at which each bucket of `plan`, made by ProfilePlan() from
// the same profile, is complete; never falling.
std::vector<double> BucketReadyUs(const proto::StepProfile& profile, const Plan& plan);

// `plan`, made by ProfilePlan() from the same profile, with the slots that --zero gives it
// (docs/use/sharding.md); units are blocks. Errors: those of CheckHasBlocks(), for 3.
absl::StatusOr<Plan> WithZero(const Plan& plan, const proto::StepProfile& profile, int zero);

// When in the recorded step happens what `plan`, of WithZero(), has to stop for; microseconds. The
// blocks' forwards share the step's by their own times; their backwards are where their gradients
// are in the recorded one. Errors: those of CheckHasBlocks(), where owners alone keep parameters.
absl::StatusOr<ComputedStep> ComputedStepUs(const proto::StepProfile& profile, const Plan& plan);

// Whether the profile has blocks, which a mesh with stages and --zero=3 are predicted and replayed
// from. Errors: INVALID_ARGUMENT, one line that says how to record them.
absl::Status CheckHasBlocks(const proto::StepProfile& profile);

// Whether the profile is of a whole model; one of a slice has a part of each tensor, and meetings
// that only meshes with slices are predicted with. Errors: INVALID_ARGUMENT saying how many slices.
absl::Status CheckWhole(const proto::StepProfile& profile);

// The same step with --activation_checkpointing: blocks that can be are computed again before their
// backward, in the time of their forward. Errors: those of CheckHasBlocks(); INVALID_ARGUMENT
// naming --activation_checkpointing where no block is known to be recomputed.
absl::StatusOr<proto::StepProfile> WithCheckpointing(const proto::StepProfile& profile);

// By tensor of the profile: its block.
std::vector<int> BlocksOfTensors(const proto::StepProfile& profile);

// By tensor of the profile: when its gradient is complete, since its own block's backward began,
// out of the block's backward_us. Inside a block gradients follow each other as in the whole
// backward.
std::vector<double> ReadyInBlockUs(const proto::StepProfile& profile);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PROFILES_STEP_PROFILE_H_
