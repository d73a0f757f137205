#ifndef GRADSYNC_WORKER_DATA_SKIP_DAMAGED_H_
#define GRADSYNC_WORKER_DATA_SKIP_DAMAGED_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace gradsync {

struct SkipDamagedOptions {
  int64_t most = 0;  // how many samples may be damaged
  // Told of each damaged sample, once, by any thread. May be null.
  std::function<void(absl::string_view line)> say;
};

// `dataset`, in which a sample that cannot be read is replaced by the next one that can, by its
// number, behind the last one by the first. So what is delivered for a number depends on the data and
// on the key of its augmentation alone, as without damage: it is the same for each rank, thread and
// restart. The dataset's size and identity stay what they are.
//
// Samples count as damaged when they are wanted, each once. The error for one too many is DATA_LOSS,
// naming --skip_damaged and the sample; other errors than DATA_LOSS are the dataset's. Thread-safe.
std::shared_ptr<const ImageDataset> SkipDamaged(std::shared_ptr<const ImageDataset> dataset,
                                                SkipDamagedOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_SKIP_DAMAGED_H_
