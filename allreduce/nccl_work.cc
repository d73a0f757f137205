#include "allreduce/nccl_work.h"

#include <utility>

#include "absl/time/time.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// For the group to know of a failure; longer than publishing and aborting take.
constexpr absl::Duration kPatience = absl::Seconds(30);

}  // namespace

void NcclOutcome::Halt(absl::Status status) {
  MutexLock lock(&mutex_);
  if (!local_.ok() || !settled_.ok()) return;
  local_ = status;
  if (report_ != nullptr) report_(std::move(status));
}

void NcclOutcome::Settle(absl::Status status) {
  MutexLock lock(&mutex_);
  if (!settled_.ok()) return;
  settled_ = std::move(status);
  changed_.SignalAll();
}

void NcclOutcome::Close() {
  MutexLock lock(&mutex_);
  report_ = nullptr;
  if (settled_.ok()) settled_ = local_;
  changed_.SignalAll();
}

bool NcclOutcome::halted() const {
  MutexLock lock(&mutex_);
  return !local_.ok() || !settled_.ok();
}

absl::Status NcclOutcome::Check(Deadline deadline) const {
  MutexLock lock(&mutex_);
  while (settled_.ok() && !local_.ok()) {
    if (changed_.WaitWithDeadline(&mutex_, deadline) && settled_.ok()) return local_;
  }
  return settled_;
}

absl::StatusOr<std::shared_ptr<NcclWork>> NcclWork::Create(std::shared_ptr<GpuApi> gpu,
                                                           std::shared_ptr<NcclOutcome> outcome) {
  std::shared_ptr<NcclWork> work(new NcclWork(std::move(gpu), std::move(outcome)));
  GS_ASSIGN_OR_RETURN(work->ready_, ScopedEvent::Create(work->gpu_));
  GS_ASSIGN_OR_RETURN(work->done_, ScopedEvent::Create(work->gpu_));
  return work;
}

absl::Status NcclWork::RecordReady() { return gpu_->Record(ready_.get(), gpu_->ComputeStream()); }

absl::Status NcclWork::StartAfterReady(GpuStream stream) {
  return gpu_->StreamWait(stream, ready_.get());
}

absl::Status NcclWork::RecordDone(GpuStream stream) { return gpu_->Record(done_.get(), stream); }

absl::Status NcclWork::JoinComputeStream() {
  GS_RETURN_IF_ERROR(outcome_->Check(Deadline::In(kPatience)));
  const absl::Status queued = gpu_->StreamWait(gpu_->ComputeStream(), done_.get());
  if (!queued.ok()) outcome_->Halt(queued);
  return outcome_->Check(Deadline::In(kPatience));
}

absl::StatusOr<std::shared_ptr<NcclWork>> NcclWorkPool::Take() {
  for (const std::shared_ptr<NcclWork>& work : works_) {
    if (work.use_count() == 1) return work;
  }
  GS_ASSIGN_OR_RETURN(std::shared_ptr<NcclWork> made, NcclWork::Create(gpu_, outcome_));
  works_.push_back(made);
  return made;
}

}  // namespace gradsync
