#ifndef GRADSYNC_WORKER_TRAIN_DESCRIBE_JOB_H_
#define GRADSYNC_WORKER_TRAIN_DESCRIBE_JOB_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// DescribeModel() of the model that the job would train, on the CPU, for a sample of its data.
// Reads the data and trains nothing. Errors: those of OpenJobData() and CreateModel(); INTERNAL
// when LibTorch throws.
absl::StatusOr<std::string> DescribeJob(const TrainerOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_DESCRIBE_JOB_H_
