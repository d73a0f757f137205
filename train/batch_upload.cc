#include "train/batch_upload.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "sync/device_buckets.h"

namespace gradsync {

absl::StatusOr<Batch> BatchUpload::Upload(Batch batch) {
  if (gpu_ == nullptr) return batch;
  while (!uploading_.empty()) {
    GS_ASSIGN_OR_RETURN(const bool done, gpu_->Done(uploading_.front().copied.get()));
    if (!done) break;
    uploading_.pop_front();
  }
  Batch uploaded = batch;
  try {
    const c10::Device device = TensorDevice(gpu_.get());
    uploaded.images = batch.images.to(device, batch.images.scalar_type(), /*non_blocking=*/true);
    uploaded.labels = batch.labels.to(device, batch.labels.scalar_type(), /*non_blocking=*/true);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying a batch to the GPU: ", e.what()));
  }
  GS_ASSIGN_OR_RETURN(ScopedEvent copied, ScopedEvent::Create(gpu_));
  GS_RETURN_IF_ERROR(gpu_->Record(copied.get(), gpu_->ComputeStream()));
  uploading_.push_back({std::move(batch), std::move(copied)});
  return uploaded;
}

}  // namespace gradsync
