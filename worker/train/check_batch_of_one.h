#ifndef GRADSYNC_WORKER_TRAIN_CHECK_BATCH_OF_ONE_H_
#define GRADSYNC_WORKER_TRAIN_CHECK_BATCH_OF_ONE_H_

#include "absl/status/status.h"
#include "worker/models/model.h"
#include "worker/train/job_inputs.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// Refuses a job that would come to a batch, or a replica's part of one, of a single image, if a
// BatchNorm of `model` has one value per channel then, of which there is no variance: an epoch's
// last batch has what is left of a rank's share. Only where there would be such a batch it runs the
// model, which must be new, on the CPU and in training mode: forward, once or twice, without a
// graph. The model is as before. Errors: INVALID_ARGUMENT naming --batch_size, what was expected and
// what came.
absl::Status CheckBatchOfOne(const TrainerOptions& options, const JobInputs& inputs, Model& model);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_CHECK_BATCH_OF_ONE_H_
