// Labelled images of one fixed size, by index. Start at OpenDataset (data/open_dataset.h).
#ifndef GRADSYNC_DATA_DATASET_H_
#define GRADSYNC_DATA_DATASET_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gradsync {

enum class Split { kTrain, kTest };

// The size of every image of a dataset. Pixels are bytes, planar (CHW): one plane per channel, each
// plane row by row from the top.
struct ImageShape {
  int channels = 3;
  int height = 32;
  int width = 32;

  int64_t bytes() const { return int64_t{channels} * height * width; }
};

// One example. `pixels` points to ImageShape::bytes() bytes, either inside the dataset or in the
// scratch memory given to Get(), so it lives as long as the shorter-lived of the two.
struct ImageExample {
  const uint8_t* pixels = nullptr;
  int label = 0;  // In [0, ImageDataset::classes()).
};

// A dataset is immutable once opened: all methods are thread-safe, need no lock, and give the same
// bytes for the same index every time.
class ImageDataset {
 public:
  virtual ~ImageDataset() = default;

  virtual int64_t size() const = 0;
  virtual int classes() const = 0;
  virtual ImageShape shape() const = 0;

  // The example at `index`, in [0, size()); another index is a mistake of the caller. A dataset
  // that must decode or compute its pixels writes them into `scratch` (at least shape().bytes()
  // long) and returns a pointer to it; one that holds them returns a pointer to its own and leaves
  // `scratch` alone. Never waits for another process; may read a file.
  //
  // Errors: DATA_LOSS if the example cannot be read or decoded. The datasets held in memory
  // (synthetic, CIFAR-10) never fail here.
  virtual absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_DATA_DATASET_H_
