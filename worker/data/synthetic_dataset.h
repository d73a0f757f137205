// Images computed from a seed, so that every job, test and benchmark has data with no download.
//
// They have CIFAR-10's shape unless another size is wanted (3x32x32, 10 classes, 50,000 training
// and 10,000 test images) and can be learned: each class has its own smooth coloured pattern, and
// each image is its class's pattern at a random contrast and brightness, hidden under noise. The
// test split shows the same patterns under other noise, so its accuracy says something. The
// patterns are coarse enough to survive RandomCrop and flips. It is far easier than real images:
// use it to see that training works and how fast it is, never to compare models.
#ifndef GRADSYNC_WORKER_DATA_SYNTHETIC_DATASET_H_
#define GRADSYNC_WORKER_DATA_SYNTHETIC_DATASET_H_

#include <cstdint>
#include <vector>

#include "worker/data/dataset.h"

namespace gradsync {

// Each image is a pure function of (seed, split, index), computed when it is asked for in a few
// microseconds (about 1 ns per value); nothing but the patterns (a byte per value of 10 images) is
// held. All arithmetic is on integers, so the bytes are the same on every machine. Thread-safe;
// Get() never fails and always fills the scratch.
class SyntheticDataset : public ImageDataset {
 public:
  struct Options {
    uint64_t seed = 0;
    Split split = Split::kTrain;
    int64_t size = 0;  // Number of images; 0: as CIFAR-10 (50,000 train, 10,000 test).
    int pixels = 32;   // Height and width; an even number.
  };

  explicit SyntheticDataset(const Options& options);

  int64_t size() const override { return size_; }
  int classes() const override;
  ImageShape shape() const override { return {3, options_.pixels, options_.pixels}; }
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override;
  DataIdentity identity() const override;

 private:
  const Options options_;
  const int64_t size_;
  std::vector<int8_t> patterns_;  // One image of signed brightness per class.
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_SYNTHETIC_DATASET_H_
