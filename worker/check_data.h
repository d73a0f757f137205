// What --check_data does: reads a job's data once and trains nothing.

#ifndef GRADSYNC_WORKER_CHECK_DATA_H_
#define GRADSYNC_WORKER_CHECK_DATA_H_

#include "worker/train/trainer_options.h"

namespace gradsync {

// Reads and decodes every sample of the training split, and of the test split if there is one, on
// `--loader_threads` threads, or all cores where that is 0. Prints what the data are, and a line for
// each sample that cannot be read, or is read with a warning. Returns the program's exit code: 0 if
// all samples can be read, 2 otherwise.
int CheckData(const TrainerOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECK_DATA_H_
