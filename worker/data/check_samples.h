#ifndef GRADSYNC_WORKER_DATA_CHECK_SAMPLES_H_
#define GRADSYNC_WORKER_DATA_CHECK_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace gradsync {

// What became of a dataset's samples, each of which was read once.
struct SampleReport {
  // A line for each sample that cannot be read, and for each that is read with a warning, in the
  // dataset's order.
  std::vector<std::string> unreadable;
  std::vector<std::string> warnings;
};

// Reads and decodes every sample once, on as many threads, at least 1. Blocks until that is done.
// Errors: RESOURCE_EXHAUSTED if no thread can be started.
absl::StatusOr<SampleReport> CheckSamples(const ImageDataset& dataset, int threads);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_CHECK_SAMPLES_H_
