// Flags of the model that --model names: sizes, dropout, activation checkpointing, and a look at it.

#ifndef GRADSYNC_WORKER_MODEL_FLAGS_H_
#define GRADSYNC_WORKER_MODEL_FLAGS_H_

#include "worker/models/model_options.h"

namespace gradsync {

// Sets what these flags say; CreateModel() checks it.
void SetModelFlags(ModelOptions* options);

// Whether the user wants to see the model (DescribeJob()) instead of a job.
bool WantsDescription();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODEL_FLAGS_H_
