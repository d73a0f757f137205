// The flags of how data are read: what image folders give, in which order samples come, how far
// ahead batches are prepared.

#ifndef GRADSYNC_WORKER_DATA_FLAGS_H_
#define GRADSYNC_WORKER_DATA_FLAGS_H_

#include "absl/status/status.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// Puts what the flags say into `options`, whose `data` is there already. Errors: INVALID_ARGUMENT
// naming the flag, what was expected and what came, such as a flag of image folders with other
// data.
absl::Status DataOptionsFromFlags(TrainerOptions* options);

// Whether --check_data asks to read the data once instead of training.
bool WantsDataCheck();

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_FLAGS_H_
