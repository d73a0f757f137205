// The batches of a job where its model is: what reads and prepares them, and what takes them there.

#ifndef GRADSYNC_WORKER_TRAIN_BATCH_SOURCE_H_
#define GRADSYNC_WORKER_TRAIN_BATCH_SOURCE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "c10/core/ScalarType.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "worker/data/augment.h"
#include "worker/data/data_loader.h"
#include "worker/data/dataset.h"
#include "worker/data/loader_threads.h"
#include "worker/train/job_inputs.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

// What the model takes, and what the loader gives.
struct BatchUploadOptions {
  ImageShape shape;
  int64_t context = 0;     // of tokens, which are no images and stay what they are; else 0
  int64_t batch_size = 0;  // of the largest batch
  at::ScalarType type = at::kFloat;  // of the images: float, bfloat16 or half
  bool channels_last = false;        // their memory format
  AugmentOptions augmentation;       // the loader's: the images are normalised as it says
};

// Hands out a loader's batches where the model is: on a GPU without waiting for it.
//
// There a batch crosses the bus as bytes, on a stream of its own, into one of two buffers, while
// the compute stream is busy with the batch before; a kernel on the compute stream then makes
// values of the bytes. They are those that the loader would have made on the host, rounded to the
// nearest of `type`. (Tokens are copied there instead.) All batches lie in the same two tensors (or
// begin there, if they are smaller), so what has been captured with one batch can be run with the
// next.
//
//   host            Next(1)   Prefetch(2)    Next(2)   Prefetch(3)
//   upload stream   copy 1     copy 2                   copy 3, not before values 1 are made
//   compute stream            values 1, step 1         values 2, step 2
//
// Not thread-safe. Errors of all methods: those of DataLoader::Next() and of GpuApi; INTERNAL when
// LibTorch throws. After one of GpuApi only the destructor is left.
class BatchUpload {
 public:
  // `gpu` null: batches stay where they are, as `loader` gives them. Else `loader` must have been
  // made with DataLoaderOptions::as_bytes and pin_for = gpu. It must outlive the result.
  static absl::StatusOr<std::unique_ptr<BatchUpload>> Create(std::shared_ptr<GpuApi> gpu,
                                                             DataLoader* loader,
                                                             const BatchUploadOptions& options);
  // Waits until the GPU has done what was queued, on the compute stream too.
  ~BatchUpload();
  BatchUpload(const BatchUpload&) = delete;
  BatchUpload& operator=(const BatchUpload&) = delete;

  // The loader's next batch; waits for the loader if it is not ready. On a GPU its tensors are
  // filled on the calling thread's compute stream, and with the next call other values come into
  // the same memory: work on them belongs on that stream, before that call. Labels are int64.
  absl::StatusOr<Batch> Next();

  // Starts the copy of the batch after that, if the loader has it ready; to be called when the step
  // is queued. Never waits. Nothing without a GPU.
  absl::Status Prefetch();

 private:
  // Where a batch arrives on the device.
  struct Buffer {
    std::shared_ptr<GpuMemory> images;
    std::shared_ptr<GpuMemory> labels;
    ScopedEvent read;  // on the compute stream
  };
  // The loader's memory, which a copy may still read.
  struct Copying {
    Batch batch;
    ScopedEvent done;  // on the upload stream
  };

  BatchUpload(std::shared_ptr<GpuApi> gpu, DataLoader* loader, const BatchUploadOptions& options)
      : gpu_(std::move(gpu)), loader_(loader), options_(options) {}

  bool of_tokens() const { return options_.context > 0; }
  absl::Status Allocate();
  absl::Status AllocateImages();
  absl::StatusOr<at::Tensor> NewTensor(const std::vector<int64_t>& sizes,
                                       const std::vector<int64_t>& strides, at::ScalarType type);
  absl::Status StartTable();
  absl::Status Start(Batch batch);
  absl::Status QueueCopies(const Copying& copying, const Buffer& buffer);
  absl::Status QueueValues(const Copying& copying, const Buffer& buffer);
  absl::Status LetGoOfCopied();
  absl::Status Await(GpuStream stream);

  const std::shared_ptr<GpuApi> gpu_;
  DataLoader* const loader_;
  const BatchUploadOptions options_;

  ScopedStream stream_;
  std::array<Buffer, 2> buffers_;
  int64_t started_ = 0;          // batches; batch k goes through buffer k % 2
  int64_t taken_ = 0;            // at least started_ - 1
  std::deque<Copying> copying_;  // the last is the one started last
  std::vector<ScopedEvent> spare_events_;
  std::shared_ptr<GpuMemory> pinned_table_;
  std::shared_ptr<GpuMemory> table_;  // a value for each byte of each channel
  at::Tensor images_;
  at::Tensor labels_;
};

// Not thread-safe. Errors are those of DataLoader and of BatchUpload.
class BatchSource {
 public:
  // One of `world_size` ranks. Both references must outlive this object. `while_waiting`: as
  // DataLoaderOptions has it.
  BatchSource(const TrainerOptions& options, int world_size, const JobInputs& inputs,
              std::function<absl::Status(absl::string_view, absl::Duration)> while_waiting);

  // Goes on with the batches from that position of that epoch on. Before all else.
  absl::Status Open(int64_t epoch, int64_t position);

  // As BatchUpload.
  absl::StatusOr<Batch> Next() { return upload_->Next(); }
  absl::Status Prefetch() { return upload_->Prefetch(); }

  // That prepare batches by now; 0 before Open().
  int loader_threads() const { return loader_ == nullptr ? 0 : loader_->threads(); }

  const LoaderThreads& threads() const { return threads_; }

 private:
  const TrainerOptions& options_;
  const JobInputs& inputs_;
  const LoaderThreads threads_;
  const std::function<absl::Status(absl::string_view, absl::Duration)> while_waiting_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<BatchUpload> upload_;  // reads the loader's memory
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_BATCH_SOURCE_H_
