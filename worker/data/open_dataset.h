// From the text of a --data flag to a dataset, and what is done about samples that cannot be read.

#ifndef GRADSYNC_WORKER_DATA_OPEN_DATASET_H_
#define GRADSYNC_WORKER_DATA_OPEN_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"
#include "worker/data/image_folder.h"

namespace gradsync {

struct SkipDamagedOptions {
  int64_t most = 0;  // how many samples may be damaged
  // Told of each damaged sample, once, by any thread. May be null.
  std::function<void(absl::string_view line)> say;
};

// `dataset`, in which a sample that cannot be read is replaced by the next one that can, by its
// number, behind the last one by the first. So what is delivered for a number depends on the data
// and on the key of its augmentation alone, as without damage: it is the same for each rank, thread
// and restart. The dataset's size and identity stay what they are.
//
// Samples count as damaged when they are wanted, each once. The error for one too many is
// DATA_LOSS, naming --skip_damaged and the sample; other errors than DATA_LOSS are the dataset's.
// Thread-safe.
std::shared_ptr<const ImageDataset> SkipDamaged(std::shared_ptr<const ImageDataset> dataset,
                                                SkipDamagedOptions options);

struct DatasetOptions {
  uint64_t seed = 0;          // of synthetic images
  ImageFolderOptions images;  // of image folders
  // How many files of an image folder may be damaged (SkipDamaged()); 0: a damaged
  // file is an error. `say` is told of them, on any thread; it may be null.
  int64_t skip_damaged = 0;
  std::function<void(absl::string_view line)> say;
};

// Whether `spec` has one of the forms of a --data flag: those of OpenDataset(), or text:FILE. What it
// names is looked at only to say which form may have been meant.
// Errors: INVALID_ARGUMENT naming --data, what was expected and what came.
absl::Status CheckDataForm(absl::string_view spec);

// Opens the dataset that `spec` names: `synthetic` (worker/data/synthetic_dataset.h),
// `synthetic:PIXELS` (images so high and wide, an even number from 8 to 1024), `cifar10:DIR`
// (worker/data/cifar10.h), or `imagefolder:DIR` (worker/data/image_folder.h). Blocks while files
// are read. The caller owns the result; it is immutable and may be shared by threads.
//
// Errors: those of CheckDataForm(), Cifar10::Open and ImageFolder::Open.
absl::StatusOr<std::shared_ptr<const ImageDataset>> OpenDataset(absl::string_view spec, Split split,
                                                                const DatasetOptions& options = {});

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

#endif  // GRADSYNC_WORKER_DATA_OPEN_DATASET_H_
