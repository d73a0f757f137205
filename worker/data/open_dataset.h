// From the text of a --data flag to a dataset.
#ifndef GRADSYNC_WORKER_DATA_OPEN_DATASET_H_
#define GRADSYNC_WORKER_DATA_OPEN_DATASET_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"
#include "worker/data/image_folder.h"

namespace gradsync {

struct DatasetOptions {
  uint64_t seed = 0;          // of synthetic images
  ImageFolderOptions images;  // of image folders
  // How many files of an image folder may be damaged (worker/data/skip_damaged.h); 0: a damaged
  // file is an error. `say` is told of them, on any thread; it may be null.
  int64_t skip_damaged = 0;
  std::function<void(absl::string_view line)> say;
};

// Opens the dataset that `spec` names: `synthetic` (worker/data/synthetic_dataset.h),
// `synthetic:PIXELS` (images so high and wide, an even number from 8 to 1024), `cifar10:DIR`
// (worker/data/cifar10.h), or `imagefolder:DIR` (worker/data/image_folder.h). Blocks while files
// are read. The caller owns the result; it is immutable and may be shared by threads.
//
// Errors: INVALID_ARGUMENT for another spec, with the ones that exist; else those of Cifar10::Open
// and ImageFolder::Open.
absl::StatusOr<std::shared_ptr<const ImageDataset>> OpenDataset(absl::string_view spec, Split split,
                                                                const DatasetOptions& options = {});

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_OPEN_DATASET_H_
