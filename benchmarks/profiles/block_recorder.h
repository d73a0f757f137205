#ifndef GRADSYNC_BENCHMARKS_PROFILES_BLOCK_RECORDER_H_
#define GRADSYNC_BENCHMARKS_PROFILES_BLOCK_RECORDER_H_

#include "absl/status/status.h"
#include "proto/step_profile.pb.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// Adds the blocks of the model to `profile`, which RecordStep() made with the same options: forward
// and backward of each by itself, in training, as a stage of a pipeline runs it, medians of as many
// runs as `options` have steps after `warmup_steps` others. From here on tensors of this process
// are counted (worker/train/count_tensor_memory.h). Blocks until all is done. Errors: those of
// OpenJobData() and CreateModel(); INTERNAL when LibTorch throws; INVALID_ARGUMENT for options that
// leave no run, and for a tensor of a block that the profile does not have.
absl::Status RecordBlocks(const TrainerOptions& options, proto::StepProfile* profile);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PROFILES_BLOCK_RECORDER_H_
