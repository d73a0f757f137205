#ifndef GRADSYNC_ALLREDUCE_NCCL_WORK_H_
#define GRADSYNC_ALLREDUCE_NCCL_WORK_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"

namespace gradsync {

// Whether a rank has failed, for those who may outlive its backend: handles, and what streams run
// on the host. Thread-safe.
class NcclOutcome {
 public:
  // `report` is given the first failure found here; it must not wait.
  explicit NcclOutcome(std::function<void(absl::Status)> report) : report_(std::move(report)) {}

  // Something failed here: nothing completes any more, and Settle() follows.
  void Halt(absl::Status status);

  // What the group makes of it. The first call counts.
  void Settle(absl::Status status);

  // `report` is called no more, and does not run.
  void Close();

  bool halted() const;

  // OK, or what was settled; after Halt() waits for that, and at the deadline returns what failed
  // here.
  absl::Status Check(Deadline deadline) const;

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::function<void(absl::Status)> report_ ABSL_GUARDED_BY(mutex_);
  absl::Status local_ ABSL_GUARDED_BY(mutex_);
  absl::Status settled_ ABSL_GUARDED_BY(mutex_);
};

// Two events around what one task queues on the communication stream: before it on the caller's
// compute stream, and after it. Thread-safe as far as GpuApi is.
class NcclWork {
 public:
  static absl::StatusOr<std::shared_ptr<NcclWork>> Create(std::shared_ptr<GpuApi> gpu,
                                                          std::shared_ptr<NcclOutcome> outcome);

  // Called by the thread whose compute stream has the inputs.
  [[nodiscard]] absl::Status RecordReady();
  [[nodiscard]] absl::Status StartAfterReady(GpuStream stream);
  [[nodiscard]] absl::Status RecordDone(GpuStream stream);

  [[nodiscard]] absl::StatusOr<bool> Ready() { return gpu_->Done(ready_.get()); }
  [[nodiscard]] absl::StatusOr<bool> Done() { return gpu_->Done(done_.get()); }

  // Makes the calling thread's compute stream come after it. Waits only when something has failed,
  // until the group knows, and returns that failure.
  [[nodiscard]] absl::Status JoinComputeStream();

 private:
  NcclWork(std::shared_ptr<GpuApi> gpu, std::shared_ptr<NcclOutcome> outcome)
      : gpu_(std::move(gpu)), outcome_(std::move(outcome)) {}

  const std::shared_ptr<GpuApi> gpu_;
  const std::shared_ptr<NcclOutcome> outcome_;
  ScopedEvent ready_;
  ScopedEvent done_;
};

// Gives out NcclWork again that nobody else refers to any more, so that in the long run none is
// made. Not thread-safe.
class NcclWorkPool {
 public:
  NcclWorkPool(std::shared_ptr<GpuApi> gpu, std::shared_ptr<NcclOutcome> outcome)
      : gpu_(std::move(gpu)), outcome_(std::move(outcome)) {}

  absl::StatusOr<std::shared_ptr<NcclWork>> Take();

 private:
  const std::shared_ptr<GpuApi> gpu_;
  const std::shared_ptr<NcclOutcome> outcome_;
  std::vector<std::shared_ptr<NcclWork>> works_;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_WORK_H_
