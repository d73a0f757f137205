// Batches of a dataset, prepared ahead of the step by the loader's own threads.
#ifndef GRADSYNC_WORKER_DATA_DATA_LOADER_H_
#define GRADSYNC_WORKER_DATA_DATA_LOADER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/gpu/gpu_api.h"
#include "worker/data/augment.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/data/tokens.h"

namespace gradsync {

struct DataLoaderOptions {
  int64_t batch_size = 128;
  int threads = 1;  // At least 1. Changes the speed only, never a bit of any batch.
  // More threads are started, one after the other, up to so many, while Next() waits too long
  // (LoaderGrowth). Below `threads`: none.
  int most_threads = 0;
  int depth = 2;  // Batches kept ready or in preparation, at least 1.
  // The last batch of an epoch when batch_size does not divide the rank's share. False: a smaller
  // batch, as PyTorch's DataLoader; all ranks have equal shares, so all get the same size at the
  // same step. True: those samples are skipped in this epoch.
  bool drop_last_batch = false;
  bool augment = true;  // As the dataset does itself, or else by `augmentation`; false: neither.
  // Images stay bytes, cropped and flipped but not normalised: a quarter of the memory and of the
  // work, for who normalises them by Augmenter::values().
  bool as_bytes = false;
  AugmentOptions augmentation;  // AugmentationOf() the dataset; its normalisation holds always
  uint64_t augment_seed = 0;
  // While Next() waits, every tenth of a second: an error ends the wait and is what Next() returns.
  // `what` is the sample that a thread has been at for the longest, as ImageDataset::name() calls it,
  // and `reading` for how long; "" and zero while none is at one. May be null.
  std::function<absl::Status(absl::string_view what, absl::Duration reading)> while_waiting;
  // Pins the batches' memory, so that this GPU copies from it beside its work. Null: plain memory.
  std::shared_ptr<GpuApi> pin_for;

  // Where the first batch begins: `start_position` samples into this rank's share of
  // `start_epoch`. With the epoch and next_position of a batch, a restarted job sees what the
  // first would have seen next.
  int64_t start_epoch = 0;
  int64_t start_position = 0;
  // The first epoch that is not delivered any more; by default there is none.
  int64_t end_epoch = std::numeric_limits<int64_t>::max();
};

// Of a full batch's images, in the loader's memory.
inline int64_t BatchBytes(const DataLoaderOptions& options, const ImageDataset& images) {
  const int64_t value = options.as_bytes ? 1 : static_cast<int64_t>(sizeof(float));
  return options.batch_size * images.shape().bytes() * value;
}

// Of a full batch of tokens and their labels.
inline int64_t BatchBytes(const DataLoaderOptions& options, const TokenDataset& tokens) {
  return options.batch_size * 2 * tokens.context() * static_cast<int64_t>(sizeof(int64_t));
}

// One batch. The tensors belong to the caller, who may keep them as long as he likes. The loader
// uses the memory again only after every tensor on it is gone, so a loop that drops a batch before
// it asks for the next but one allocates nothing after the first steps.
struct Batch {
  // float or uint8 [B, C, H, W], or tokens int64 [B, T]; contiguous, on the CPU.
  at::Tensor images;
  at::Tensor labels;           // int64 [B], or of tokens [B, T]: those that follow them.
  int64_t epoch = 0;           // The epoch that its samples are from.
  int64_t position = 0;        // Of its first sample in this rank's share of the epoch.
  int64_t next_position = 0;   // position + B.
  bool last_of_epoch = false;  // The next batch comes from the next epoch.
};

// The sequence of batches is a pure function of dataset, sampler and options: epoch after epoch,
// in the sampler's order. One thread at a time may call Next(); a loader may be destroyed at any
// moment by the thread that calls it, also with batches unread. It waits for its threads to finish
// the few samples they are at, but not for one that has been at a sample for two seconds, as in a
// file on a disk that does not answer: that one goes on by itself, with the dataset, and ends when it
// can.
class DataLoader {
 public:
  // Starts the threads, which begin at once. Blocks only to allocate.
  //
  // Errors: INVALID_ARGUMENT if batch_size is larger than the rank's share of an epoch (both
  // numbers are named), or batch_size, threads or depth is below 1, or the starting point lies
  // outside the epochs or the share, or the sampler is for another dataset size.
  static absl::StatusOr<std::unique_ptr<DataLoader>> Create(
      std::shared_ptr<const ImageDataset> dataset, const RankSampler& sampler,
      const DataLoaderOptions& options);

  // The same for sequences of tokens; what options say of images has no meaning for them.
  static absl::StatusOr<std::unique_ptr<DataLoader>> Create(
      std::shared_ptr<const TokenDataset> dataset, const RankSampler& sampler,
      const DataLoaderOptions& options);
  ~DataLoader();

  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  // The next batch; waits until it is ready.
  //
  // Errors: OUT_OF_RANGE after the last batch before end_epoch; the dataset's error for the first
  // sample of the batch that failed (the batch is skipped, the loader can go on); that of
  // while_waiting.
  absl::StatusOr<Batch> Next();

  // Whether Next() would give a batch without waiting. Called like Next().
  bool Ready() const;

  // Batches in a full epoch. Thread-safe.
  int64_t batches_per_epoch() const;

  // How many threads prepare batches by now. Called like Next().
  int threads() const;

  // How often memory for a batch was allocated so far. Called like Next().
  int64_t buffers_allocated() const;

 private:
  class Impl;
  explicit DataLoader(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // its threads' too
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_DATA_LOADER_H_
