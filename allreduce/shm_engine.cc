#include "allreduce/shm_engine.h"

#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allreduce/clip_scale.h"
#include "allreduce/ring_frames.h"
#include "base/kernels.h"
#include "plan/stripes.h"

namespace gradsync {
namespace {

// Before it sleeps, a rank that has something launched looks for this long: a wake-up costs about
// as much, and the others are often that close. Longer would take the core from a rank that has to
// compute or to fold.
constexpr absl::Duration kSpin = absl::Microseconds(20);

using Note = std::array<uint64_t, 4>;

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double FromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

Note NoteOf(const StepOptions& step) {
  return {static_cast<uint64_t>(step.step), BitsOf(step.lr), BitsOf(step.max_norm),
          BitsOf(step.inverse_loss_scale)};
}

StepOptions StepOf(const Note& note) {
  StepOptions step;
  step.step = static_cast<int64_t>(note[0]);
  step.lr = FromBits(note[1]);
  step.max_norm = FromBits(note[2]);
  step.inverse_loss_scale = FromBits(note[3]);
  return step;
}

std::vector<WindowControl*> ControlsOf(const std::vector<std::shared_ptr<Window>>& windows) {
  std::vector<WindowControl*> controls;
  for (const auto& window : windows) {
    controls.push_back(reinterpret_cast<WindowControl*>(window->data()));
  }
  return controls;
}

std::vector<BucketMemory> MemoryOf(const Plan& plan, const Window& window) {
  const WindowLayout layout = ShmLayout(plan);
  std::vector<BucketMemory> memory;
  for (size_t bucket = 0; bucket < plan.buckets().size(); ++bucket) {
    const int b = static_cast<int>(bucket);
    memory.push_back({reinterpret_cast<float*>(window.data() + layout.grad_offset(b)),
                      reinterpret_cast<float*>(window.data() + layout.param_offset(b)),
                      plan.buckets()[bucket].numel});
  }
  return memory;
}

}  // namespace

WindowLayout ShmLayout(const Plan& plan) { return WindowLayout(plan, sizeof(WindowControl)); }

ShmEngine::ShmEngine(ShmEngineOptions options)
    : options_(std::move(options)),
      buckets_(static_cast<int>(options_.plan.buckets().size())),
      signals_(ControlsOf(options_.windows), options_.rank, {0, world_size()}, {0, world_size()}),
      owner_(options_.plan, options_.rank, options_.update_site,
             MemoryOf(options_.plan, *options_.windows[options_.rank])),
      ins_(world_size()),
      outs_(world_size()),
      open_(buckets_) {
  const WindowLayout layout = ShmLayout(options_.plan);
  for (const auto& window : options_.windows) {
    memory_.push_back(MemoryOf(options_.plan, *window));
    squares_.push_back(
        absl::MakeSpan(reinterpret_cast<double*>(window->data() + layout.squares_offset()),
                       static_cast<size_t>(layout.squares())));
  }
  for (const BucketPlan& bucket : options_.plan.buckets()) {
    Incoming incoming;
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      if (bucket.layout.chunk_of(slot) == options_.rank || bucket.layout.range(slot).empty())
        continue;
      incoming.bytes += bucket.layout.range(slot).size() * 4;
      incoming.messages += 1;
    }
    incoming_.push_back(incoming);
  }
  thread_ = std::thread([this] { Loop(); });
}

ShmEngine::~ShmEngine() { Stop(); }

SyncHandle ShmEngine::Launch(const StepOptions& step, int bucket) {
  SyncPromise promise(absl::StrCat("bucket ", bucket, " of step ", step.step));
  const SyncHandle handle = promise.handle();
  int64_t launch;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) {
      promise.Resolve(failed_);
      return handle;
    }
    open_[bucket].step = step;
    open_[bucket].promise = std::move(promise);
    launch = launched_.load(std::memory_order_relaxed) + 1;
    launched_.store(launch, std::memory_order_release);
  }
  if (bucket == 0) signals_.SetNote(NoteOf(step));
  signals_.Advance(WindowControl::kReady, static_cast<uint32_t>(launch));
  return handle;
}

SyncHandle ShmEngine::Refuse(absl::Status error) {
  SyncPromise promise("the failure of the group");
  const SyncHandle handle = promise.handle();
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) {
      promise.Resolve(failed_);
      return handle;
    }
    refused_.push_back(std::move(promise));
  }
  options_.report(std::move(error));
  return handle;
}

void ShmEngine::PullParameters() {
  for (int bucket = 0; bucket < buckets_; ++bucket) {
    const BucketMemory& own = memory_[options_.rank][bucket];
    if (options_.rank == 0) {
      tx_bytes_ += (world_size() - 1) * own.numel * 4;
      tx_messages_ += world_size() - 1;
      continue;
    }
    Copy(own.param, memory_[0][bucket].param, own.numel);
    rx_bytes_ += own.numel * 4;
    rx_messages_ += 1;
  }
  // The rest of the job reads only a part of it.
  if (options_.rank != 0) options_.windows[0]->Forget();
}

void ShmEngine::Halt() {
  halted_.store(true, std::memory_order_release);
  signals_.RingSelf();
}

void ShmEngine::Fail(absl::Status status) {
  Halt();
  std::vector<SyncPromise> promises;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return;
    failed_ = status;
    promises = std::move(refused_);
    refused_.clear();
    for (OpenBucket& open : open_) {
      if (open.promise.has_value()) promises.push_back(*std::move(open.promise));
      open.promise.reset();
    }
  }
  for (const SyncPromise& promise : promises) promise.Resolve(status);
}

void ShmEngine::Stop() {
  Halt();
  if (thread_.joinable()) thread_.join();
}

WireStats ShmEngine::wire_stats() const {
  return {tx_bytes_.load(), rx_bytes_.load(), tx_messages_.load(), rx_messages_.load()};
}

void ShmEngine::Loop() {
  while (true) {
    signals_.Await([this] { return halted() || CanExchange() || CanResolve(); }, Patience());
    if (halted()) return;
    ResolveComplete();
    if (CanExchange()) Exchange();
  }
}

bool ShmEngine::CanExchange() const {
  return signals_.AllReached(WindowControl::kReady, static_cast<uint32_t>(exchanged_ + 1));
}

bool ShmEngine::CanResolve() const {
  return resolved_ < exchanged_ &&
         signals_.AllReached(WindowControl::kDone, static_cast<uint32_t>(resolved_ + 1));
}

absl::Duration ShmEngine::Patience() const {
  return launched_.load(std::memory_order_acquire) > resolved_ ? kSpin : absl::ZeroDuration();
}

void ShmEngine::Exchange() {
  const int bucket = static_cast<int>(exchanged_ % buckets_);
  StepOptions step;
  {
    MutexLock lock(&mutex_);
    step = open_[bucket].step;
  }
  if (bucket == 0) {
    const absl::Status agreed = CheckNotes();
    if (!agreed.ok()) {
      halted_.store(true, std::memory_order_release);
      return options_.report(agreed);
    }
  }
  const StripeLayout& layout = options_.plan.buckets()[bucket].layout;
  for (int slot = options_.rank; slot < layout.slots(); slot += world_size()) {
    if (layout.range(slot).empty()) continue;
    ExchangeChunk(step, {bucket, slot});
    if (halted()) return;
    ResolveComplete();
  }
  ++exchanged_;
  if (clips(step)) {
    if (bucket != buckets_ - 1) return;
    Clip(step);
    if (halted()) return;
  }
  signals_.Advance(WindowControl::kDone, static_cast<uint32_t>(exchanged_));
}

void ShmEngine::ExchangeChunk(const StepOptions& step, SegmentId id) {
  const int n = world_size();
  const StripeLayout& layout = options_.plan.buckets()[id.bucket].layout;
  const ElementRange range = layout.range(id.slot);
  for (int position = 0; position < n; ++position) {
    const int rank = FoldRank(layout.chunk_of(id.slot), position, n);
    outs_[position] = memory_[rank][id.bucket].grad + range.begin;
    ins_[position] = outs_[position];
  }
  const bool to_all = options_.update_site == UpdateSite::kWorker;
  // The owner comes last in the fold of its chunks.
  FoldMean(to_all ? outs_.data() : &outs_[n - 1], to_all ? n : 1, ins_.data(), n, range.size(),
           1.0f / static_cast<float>(n), static_cast<float>(step.inverse_loss_scale));
  if (to_all) {
    CountStored(range.size() * 4);
  } else if (clips(step)) {
    owner_.MeasureSquares(id);
  } else {
    UpdateAndStore(step, id);
  }
}

void ShmEngine::Clip(const StepOptions& step) {
  const std::vector<double>& own = owner_.squares();
  std::memcpy(squares_[options_.rank].data(), own.data(), own.size() * sizeof(double));
  ++measured_;
  signals_.Advance(WindowControl::kMeasured, measured_);
  signals_.Await(
      [this] { return halted() || signals_.AllReached(WindowControl::kMeasured, measured_); },
      kSpin);
  if (halted()) return;
  const std::vector<absl::Span<const double>> squares(squares_.begin(), squares_.end());
  const float scale = static_cast<float>(ClipScale(options_.plan, step.max_norm, squares));
  for (SegmentId id : owner_.chunks()) {
    if (scale != 1) owner_.ScaleMean(id, scale);
    UpdateAndStore(step, id);
    if (halted()) return;
  }
}

void ShmEngine::UpdateAndStore(const StepOptions& step, SegmentId id) {
  owner_.Update(id, step);
  const ElementRange range = options_.plan.buckets()[id.bucket].layout.range(id.slot);
  const float* updated = memory_[options_.rank][id.bucket].param + range.begin;
  for (int other = 1; other < world_size(); ++other) {
    const int rank = (options_.rank + other) % world_size();
    Copy(memory_[rank][id.bucket].param + range.begin, updated, range.size());
  }
  CountStored(range.size() * 4);
}

// Stored into every other rank's window.
void ShmEngine::CountStored(int64_t bytes) {
  tx_bytes_.fetch_add((world_size() - 1) * bytes, std::memory_order_relaxed);
  tx_messages_.fetch_add(world_size() - 1, std::memory_order_relaxed);
}

void ShmEngine::ResolveComplete() {
  while (CanResolve()) {
    const int bucket = static_cast<int>(resolved_ % buckets_);
    ++resolved_;
    rx_bytes_.fetch_add(incoming_[bucket].bytes, std::memory_order_relaxed);
    rx_messages_.fetch_add(incoming_[bucket].messages, std::memory_order_relaxed);
    absl::optional<SyncPromise> promise;
    {
      MutexLock lock(&mutex_);
      if (halted()) return;
      promise = std::move(open_[bucket].promise);
      open_[bucket].promise.reset();
    }
    if (promise.has_value()) promise->Resolve(absl::OkStatus());
  }
}

absl::Status ShmEngine::CheckNotes() const {
  const Note own = signals_.note(options_.rank);
  for (int rank = 0; rank < world_size(); ++rank) {
    const Note theirs = signals_.note(rank);
    if (theirs == own) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks disagree on the step: rank ", options_.rank, " has ", DescribeStep(StepOf(own)),
        ", rank ", rank, " has ", DescribeStep(StepOf(theirs))));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
