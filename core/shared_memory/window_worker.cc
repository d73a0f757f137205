#include "core/shared_memory/window_worker.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"
#include "core/base/prefetch.h"
#include "core/shared_memory/window_layout.h"

namespace gradsync {
namespace {

// Where all post at the same time the exchange is over after so many, which is sooner than a handle
// that waits could be made.
constexpr int kLooksAtPosts = 8;

}  // namespace

WindowWorker::WindowWorker(GroupWindows* windows) : windows_(*windows) {
  const WindowGroup& group = windows_.group();
  for (int bucket = 0; bucket < static_cast<int>(group.plan().buckets().size()); ++bucket) {
    const StripeLayout& layout = group.plan().buckets()[bucket].layout;
    Exchanged& exchanged = exchanged_.emplace_back();
    const WindowGroup::Stored stored = group.StoredBy(windows_.self(), bucket);
    exchanged.tx_bytes = stored.bytes;
    exchanged.tx_messages = stored.messages;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const int64_t bytes = layout.range(slot).size() * 4;
      if (bytes == 0 || windows_.sharded()) continue;
      if (group.owner({bucket, slot}) != windows_.self()) {
        exchanged.rx_bytes += bytes;
        exchanged.rx_messages += 1;
      }
    }
  }
  SetDriver({});
}

void WindowWorker::SetDriver(const std::weak_ptr<SyncDriver>& driver) {
  MutexLock lock(&mutex_);
  promises_.clear();
  for (size_t bucket = 0; bucket < exchanged_.size(); ++bucket) {
    promises_.emplace_back(absl::StrCat("bucket ", bucket), driver);
  }
}

bool WindowWorker::Post(const StepOptions& step, int bucket) {
  // With its gradient the others could complete the exchange without this rank.
  if (halted()) return false;
  const int64_t launch = launched() + 1;
  if (windows_.group().IsPosted(bucket, launch)) return WritePost(step, bucket, launch);
  BucketProgress* const sole = windows_.sole_progress(bucket);
  if (sole != nullptr) PrefetchToWrite(sole);
  if (bucket == 0) windows_.signals().SetNote(NoteOf(step));
  if (sole == nullptr) {
    return windows_.signals().Publish(WindowControl::kReady, static_cast<uint32_t>(launch));
  }
  // Of workers that count themselves one is the last, and has then the line that it needs next.
  windows_.signals().FetchOthers(WindowControl::kReady);
  windows_.signals().Announce(WindowControl::kReady, static_cast<uint32_t>(launch));
  const auto rounds = static_cast<uint32_t>((launch - 1) / static_cast<int64_t>(exchanged_.size()));
  const auto all = static_cast<uint32_t>(workers());
  return sole->arrived.fetch_add(1, std::memory_order_seq_cst) == rounds * all + all - 1;
}

bool WindowWorker::WritePost(const StepOptions& step, int bucket, int64_t launch) {
  const WindowPosts& posts = windows_.posts(bucket);
  const int64_t round = windows_.RoundOf(launch);
  const WindowPosts::Note note = NoteOf(step);
  posts.Write(round, note, windows_.grad(windows_.self(), bucket));
  // For servers, and owners of other buckets.
  if (bucket == 0) windows_.signals().SetNote(note);
  windows_.signals().Announce(WindowControl::kReady, static_cast<uint32_t>(launch));
  for (int look = 0; look < kLooksAtPosts; ++look) {
    if (posts.AllThere(round)) return true;
    __builtin_ia32_pause();
  }
  // Of those who post at the same time one at least is told that all are there.
  WindowSignals::Fence();
  return posts.AllThere(round);
}

SyncHandle WindowWorker::Begin(const StepOptions& step, int bucket) {
  MutexLock lock(&mutex_);
  if (!failed_.ok()) return ResolvedHandle(failed_);
  SyncHandle handle = promises_[bucket].Begin(step.step).handle();
  launched_.store(launched() + 1, std::memory_order_release);
  return handle;
}

bool WindowWorker::Complete() {
  const int64_t launch = launched() + 1;
  if (halted() || next() != launch) return false;
  // In this order nothing seems to be open meanwhile.
  resolved_.store(launch, std::memory_order_release);
  launched_.store(launch, std::memory_order_release);
  return true;
}

void WindowWorker::PullParameters() {
  const int self = windows_.self();
  for (int bucket = 0; bucket < static_cast<int>(exchanged_.size()); ++bucket) {
    const int64_t numel = windows_.plan().buckets()[bucket].numel;
    if (self == 0) {
      counter_.Sent((workers() - 1) * numel * 4, workers() - 1);
      continue;
    }
    Copy(windows_.param(self, bucket), windows_.param(0, bucket), numel);
    counter_.Received(numel * 4);
  }
  // The rest of the job reads only a part of it.
  if (self != 0) windows_.window(0).Forget();
}

void WindowWorker::Gather(int bucket) {
  const StripeLayout& layout = windows_.plan().buckets()[bucket].layout;
  float* const param = windows_.param(windows_.self(), bucket);
  for (int slot = 0; slot < layout.slots(); ++slot) {
    const ElementRange range = layout.range(slot);
    if (range.empty()) continue;
    Copy(param + range.begin, windows_.shard({bucket, slot}), range.size());
    if (windows_.group().owner({bucket, slot}) == windows_.self()) {
      counter_.Sent((workers() - 1) * range.size() * 4, workers() - 1);
    } else {
      counter_.Received(range.size() * 4);
    }
  }
}

void WindowWorker::StoreParameters(int bucket) {
  const StripeLayout& layout = windows_.plan().buckets()[bucket].layout;
  const float* const param = windows_.param(0, bucket);
  for (int slot = 0; slot < layout.slots(); ++slot) {
    const ElementRange range = layout.range(slot);
    if (range.empty()) continue;
    const bool own = windows_.group().owner({bucket, slot}) == windows_.self();
    if (windows_.self() != 0) {
      if (own) counter_.Received(range.size() * 4);
      continue;
    }
    Copy(windows_.shard({bucket, slot}), param + range.begin, range.size());
    if (!own) counter_.Sent(range.size() * 4, 1);
  }
}

bool WindowWorker::CanResolve() const {
  const int64_t next = resolved_.load(std::memory_order_acquire) + 1;
  return next <= launched_.load(std::memory_order_acquire) &&
         windows_.Done(static_cast<int>((next - 1) % exchanged_.size()), next);
}

void WindowWorker::Resolve() {
  while (CanResolve()) {
    const size_t bucket = resolved_.load(std::memory_order_relaxed) % exchanged_.size();
    resolved_.store(next(), std::memory_order_release);
    MutexLock lock(&mutex_);
    if (halted()) return;
    promises_[bucket].current().Resolve(absl::OkStatus());
  }
}

WireStats WindowWorker::wire_stats() const {
  WireStats stats = counter_.stats();
  const int64_t resolved = resolved_.load(std::memory_order_acquire);
  for (int bucket = 0; bucket < static_cast<int>(exchanged_.size()); ++bucket) {
    const int64_t times = windows_.group().LaunchesOf(bucket, resolved);
    const Exchanged& exchanged = exchanged_[bucket];
    stats.tx_bytes += times * exchanged.tx_bytes;
    stats.rx_bytes += times * exchanged.rx_bytes;
    stats.tx_messages += times * exchanged.tx_messages;
    stats.rx_messages += times * exchanged.rx_messages;
  }
  return stats;
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
  for (const SyncPromiseSeries& series : promises_) series.current().Resolve(status);
}

}  // namespace gradsync
