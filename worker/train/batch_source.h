// The batches of a job where its model is: what reads and prepares them, and what takes them there.

#ifndef GRADSYNC_WORKER_TRAIN_BATCH_SOURCE_H_
#define GRADSYNC_WORKER_TRAIN_BATCH_SOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/data/data_loader.h"
#include "worker/data/loader_threads.h"
#include "worker/train/batch_upload.h"
#include "worker/train/job_inputs.h"
#include "worker/train/trainer_options.h"

namespace gradsync {

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
