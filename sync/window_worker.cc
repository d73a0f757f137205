#include "sync/window_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/kernels.h"
#include "links/step_note.h"

namespace gradsync {

WindowWorker::WindowWorker(GroupWindows* windows, std::function<void(absl::Status)> report)
    : windows_(*windows), report_(std::move(report)) {
  const WindowGroup& group = windows_.group();
  for (int bucket = 0; bucket < static_cast<int>(group.plan().buckets().size()); ++bucket) {
    promises_.emplace_back(absl::StrCat("bucket ", bucket));
    const StripeLayout& layout = group.plan().buckets()[bucket].layout;
    Incoming& incoming = incoming_.emplace_back();
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (group.owner({bucket, slot}) == windows_.self() || layout.range(slot).empty()) continue;
      incoming.bytes += layout.range(slot).size() * 4;
      incoming.messages += 1;
    }
  }
}

SyncHandle WindowWorker::Launch(const StepOptions& step, int bucket) {
  absl::optional<SyncHandle> handle;
  int64_t launch;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return ResolvedHandle(failed_);
    handle = promises_[bucket].Begin(step.step).handle();
    launch = launched_.load(std::memory_order_relaxed) + 1;
    launched_.store(launch, std::memory_order_release);
  }
  if (halted()) return *std::move(handle);
  if (bucket == 0) windows_.signals().SetNote(NoteOf(step));
  windows_.signals().Advance(WindowControl::kReady, static_cast<uint32_t>(launch));
  return *std::move(handle);
}

SyncHandle WindowWorker::Refuse(absl::Status error) {
  SyncPromise promise("the failure of the group");
  const SyncHandle handle = promise.handle();
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return ResolvedHandle(failed_);
    refused_.push_back(std::move(promise));
  }
  report_(std::move(error));
  return handle;
}

void WindowWorker::PullParameters() {
  const int self = windows_.self();
  for (int bucket = 0; bucket < static_cast<int>(incoming_.size()); ++bucket) {
    const int64_t numel = windows_.plan().buckets()[bucket].numel;
    if (self == 0) {
      tx_bytes_ += (workers() - 1) * numel * 4;
      tx_messages_ += workers() - 1;
      continue;
    }
    Copy(windows_.param(self, bucket), windows_.param(0, bucket), numel);
    rx_bytes_ += numel * 4;
    rx_messages_ += 1;
  }
  // The rest of the job reads only a part of it.
  if (self != 0) windows_.window(0).Forget();
}

bool WindowWorker::CanResolve() const {
  return resolved_ < launched_.load(std::memory_order_acquire) &&
         windows_.signals().AllReached(WindowControl::kDone, static_cast<uint32_t>(resolved_ + 1));
}

void WindowWorker::Resolve() {
  while (CanResolve()) {
    const int bucket = static_cast<int>(resolved_ % incoming_.size());
    ++resolved_;
    rx_bytes_.fetch_add(incoming_[bucket].bytes, std::memory_order_relaxed);
    rx_messages_.fetch_add(incoming_[bucket].messages, std::memory_order_relaxed);
    MutexLock lock(&mutex_);
    if (halted()) return;
    promises_[bucket].current().Resolve(absl::OkStatus());
  }
}

void WindowWorker::Halt() {
  halted_.store(true, std::memory_order_release);
  windows_.signals().RingSelf();
}

void WindowWorker::Fail(const absl::Status& status) {
  Halt();
  MutexLock lock(&mutex_);
  if (!failed_.ok()) return;
  failed_ = status;
  for (const SyncPromise& promise : refused_) promise.Resolve(status);
  refused_.clear();
  for (const SyncPromiseSeries& series : promises_) series.current().Resolve(status);
}

WireStats WindowWorker::wire_stats() const {
  return {tx_bytes_.load(), rx_bytes_.load(), tx_messages_.load(), rx_messages_.load()};
}

}  // namespace gradsync
