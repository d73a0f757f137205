#ifndef GRADSYNC_TRAIN_BATCH_UPLOAD_H_
#define GRADSYNC_TRAIN_BATCH_UPLOAD_H_

#include <deque>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "gpu/gpu_api.h"
#include "gpu/gpu_resources.h"
#include "train/data_loader.h"

namespace gradsync {

// Brings batches to the GPU without waiting for it. Not thread-safe.
class BatchUpload {
 public:
  // Null: batches stay where they are.
  explicit BatchUpload(std::shared_ptr<GpuApi> gpu) : gpu_(std::move(gpu)) {}

  // `batch` with its tensors on the device: the copies are queued on the calling thread's compute
  // stream. The batch's own memory, which should be pinned (DataLoaderOptions::pin_for), is kept
  // from the loader until they are done. Errors: those of GpuApi; INTERNAL when LibTorch throws.
  absl::StatusOr<Batch> Upload(Batch batch);

 private:
  struct Uploading {
    Batch batch;
    ScopedEvent copied;
  };

  const std::shared_ptr<GpuApi> gpu_;
  std::deque<Uploading> uploading_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TRAIN_BATCH_UPLOAD_H_
