// CIFAR-10 in its binary version, as its page describes it
// (https://www.cs.toronto.edu/~kriz/cifar.html): records of one label byte and 3,072 pixel bytes
// (red, green and blue plane of 32x32), 10,000 records a file, in data_batch_1.bin ..
// data_batch_5.bin (training) and test_batch.bin (test). tools/get_cifar10 fetches it.
#ifndef GRADSYNC_WORKER_DATA_CIFAR10_H_
#define GRADSYNC_WORKER_DATA_CIFAR10_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"

namespace gradsync {

// One split, held in memory (154 MB for training, 31 MB for test). Thread-safe.
class Cifar10 : public ImageDataset {
 public:
  // Reads and checks the files of `split`, found in `directory` itself or in its subfolder
  // `cifar-10-batches-bin` (where the archive unpacks). Blocks while it reads.
  //
  // Errors, each naming the file:
  //   NOT_FOUND: the directory or one of its files does not exist.
  //   DATA_LOSS: a file does not have exactly 30,730,000 bytes, or a label is above 9.
  //   PERMISSION_DENIED, UNKNOWN: the system could not open or read it, with its own words.
  static absl::StatusOr<std::unique_ptr<Cifar10>> Open(absl::string_view directory, Split split);

  int64_t size() const override;
  int classes() const override { return 10; }
  ImageShape shape() const override { return ImageShape{}; }
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override;
  DataIdentity identity() const override;

 private:
  explicit Cifar10(std::vector<uint8_t> records) : records_(std::move(records)) {}

  const std::vector<uint8_t> records_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_CIFAR10_H_
