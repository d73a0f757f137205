#include "core/shared_memory/window_owner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"
#include "core/base/prefetch.h"
#include "core/base/status_macros.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"
#include "core/shared_memory/window_layout.h"

namespace gradsync {
namespace {

constexpr int64_t kLineBytes = 64;
constexpr int64_t kMostFetched = 16;  // lines; with more under way others wait for these

}  // namespace

WindowOwner::WindowOwner(GroupWindows* windows, ChunkUpdater update,
                         std::shared_ptr<TraceRecorder> recorder)
    : windows_(*windows),
      update_(std::move(update)),
      recorder_(std::move(recorder)),
      workers_(windows_.group().workers()),
      buckets_(static_cast<int>(windows_.plan().buckets().size())),
      next_(windows_.group().members()),
      ins_(workers_),
      outs_(workers_) {
  const int self = windows_.self();
  lists_.push_back(ListOf(self));
  const WindowSignals::Holders owners = windows_.group().owners();
  const int count = owners.last - owners.first;
  // Each worker begins with another's.
  for (int other = 1; self < workers_ && update_ == nullptr && other <= count; ++other) {
    const int member = owners.first + (self + other) % count;
    if (member != self) lists_.push_back(ListOf(member));
  }
  for (int bucket = 0; bucket < buckets_; ++bucket) parts_.push_back(Parts(bucket));
}

WindowOwner::List WindowOwner::ListOf(int member) const {
  List list;
  list.member = member;
  list.chunks = windows_.group().OwnedChunks(member);
  for (int bucket = 0; bucket <= buckets_; ++bucket) {
    const auto first = std::find_if(list.chunks.begin(), list.chunks.end(),
                                    [bucket](ChunkId id) { return id.bucket >= bucket; });
    list.first.push_back(first - list.chunks.begin());
  }
  return list;
}

// What has to be finished for a launch of the bucket to be complete. With an updater every owner
// takes part, whether it has chunks or not, because all have to agree on a norm.
uint32_t WindowOwner::Parts(int bucket) const {
  const StripeLayout& layout = windows_.plan().buckets()[bucket].layout;
  uint32_t parts = 0;
  for (int slot = 0; slot < layout.slots(); ++slot) parts += layout.range(slot).empty() ? 0 : 1;
  const WindowSignals::Holders owners = windows_.group().owners();
  if (update_ != nullptr) return parts + static_cast<uint32_t>(owners.last - owners.first);
  return std::max(parts, 1u);
}

bool WindowOwner::CanReduce() const {
  if (clipping_.load(std::memory_order_acquire)) {
    return windows_.signals().AllReached(WindowControl::kMeasured, measured_.load());
  }
  const int64_t launch = reduced() + 1;
  const int bucket = BucketOf(launch);
  if (IsWorker() && windows_.group().IsPosted(bucket, launch)) {
    return windows_.posts(bucket).AllThere(windows_.RoundOf(launch));
  }
  return windows_.signals().AllReached(WindowControl::kReady, static_cast<uint32_t>(launch));
}

int64_t WindowOwner::launched() const {
  const int64_t reduced = this->reduced();
  return reduced + windows_.signals().Beyond(WindowControl::kReady, static_cast<uint32_t>(reduced));
}

void WindowOwner::Halt() {
  halted_.store(true, std::memory_order_release);
  windows_.signals().RingSelf();
}

void WindowOwner::FetchAhead(int bucket) {
  if (windows_.sole_progress(bucket) == nullptr) return;
  const int64_t bytes = windows_.plan().buckets()[bucket].bytes();
  const int64_t lines = std::min((bytes + kLineBytes - 1) / kLineBytes, kMostFetched);
  for (int rank = 0; rank < workers_; ++rank) {
    if (rank == windows_.self()) continue;
    const char* const grad = reinterpret_cast<const char*>(windows_.grad(rank, bucket));
    for (int64_t line = 0; line < lines; ++line) PrefetchToWrite(grad + line * kLineBytes);
  }
}

absl::Status WindowOwner::Reduce(bool help) {
  if (clipping_.load(std::memory_order_relaxed)) {
    Clip(reduced());
    return absl::OkStatus();
  }
  const int64_t launch = reduced() + 1;
  const int bucket = BucketOf(launch);
  if (windows_.group().IsPosted(bucket, launch)) return ReducePosts(launch, bucket);
  const size_t lists = help ? lists_.size() : 1;
  for (size_t i = 0; i < lists; ++i) {
    const absl::optional<size_t> chunk = Take(lists_[i], launch, bucket);
    if (!chunk.has_value()) continue;
    GS_RETURN_IF_ERROR(AgreeOnStep(launch));
    ReduceChunk(lists_[i].chunks[*chunk], *chunk);
    if (!clips()) Finish(launch, 1);
    if (update_ == nullptr && parts_[bucket] == 1) LeaveBehind();
    return absl::OkStatus();
  }
  return Pass(launch);
}

// Whoever takes a chunk of a launch marks it in the owner's window. There are marks for each
// bucket, because who helps may be at a later launch than the owner.
absl::optional<size_t> WindowOwner::Take(const List& list, int64_t launch, int bucket) {
  const uint32_t size = static_cast<uint32_t>(list.first[bucket + 1] - list.first[bucket]);
  if (size == 0) return absl::nullopt;  // asks no other core
  const uint32_t number = static_cast<uint32_t>(launch);
  std::atomic<uint64_t>& taken = windows_.progress(list.member, bucket).taken;
  uint64_t seen = taken.load(std::memory_order_relaxed);
  while (true) {
    const int32_t ahead = static_cast<int32_t>(static_cast<uint32_t>(seen >> 32) - number);
    const uint32_t next = ahead == 0 ? static_cast<uint32_t>(seen) : 0;
    if (ahead > 0 || next >= size) return absl::nullopt;
    const uint64_t mine = (uint64_t{number} << 32) | (next + 1);
    if (taken.compare_exchange_weak(seen, mine, std::memory_order_acq_rel)) {
      return list.first[bucket + 1] - 1 - next;
    }
  }
}

// Only with a chunk of `launch` in hand, or where nothing ends without this owner: as long as that
// is not finished no worker begins another step, so the notes are those of this one.
absl::Status WindowOwner::AgreeOnStep(int64_t launch) {
  return AgreeOnStep((launch - 1) / buckets_,
                     [this](int rank) { return windows_.signals().note(rank); });
}

absl::Status WindowOwner::AgreeOnStep(int64_t place,
                                      absl::FunctionRef<std::array<uint64_t, 4>(int)> note) {
  if (agreed_ == place) return absl::OkStatus();
  const std::array<uint64_t, 4> first = note(0);
  for (int rank = 1; rank < workers_; ++rank) {
    const std::array<uint64_t, 4> other = note(rank);
    if (other == first) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("ranks disagree on the step: ", windows_.group().Name(0), " has ",
                     DescribeStep(StepOf(first)), ", ", windows_.group().Name(rank), " has ",
                     DescribeStep(StepOf(other))));
  }
  step_ = StepOf(first);
  last_step_.store(step_.step, std::memory_order_relaxed);
  agreed_ = place;
  return absl::OkStatus();
}

void WindowOwner::Finish(int64_t launch, uint32_t parts) {
  if (halted()) return;
  const int bucket = BucketOf(launch);
  BucketProgress& progress = windows_.progress(0, bucket);
  if (parts != parts_[bucket]) {
    const uint32_t finished = progress.finished.fetch_add(parts, std::memory_order_acq_rel) + parts;
    if (finished != parts_[bucket]) return;
    progress.finished.store(0, std::memory_order_relaxed);
  }
  completed_ = launch;
  // It is seen as soon as the results are, which are still on their way to others' memory.
  progress.done.store(static_cast<uint32_t>(launch), std::memory_order_release);
  if (windows_.group().IsSmall(bucket)) {
    windows_.signals().RingOtherGuests();
  } else {
    windows_.signals().RingOtherWorkers();
  }
}

// No chunk of the launch is left to be taken. Left behind before others may see it as done: with an
// updater it is this owner that they wait for then.
absl::Status WindowOwner::Pass(int64_t launch) {
  const int bucket = BucketOf(launch);
  if (update_ != nullptr) GS_RETURN_IF_ERROR(AgreeOnStep(launch));
  const bool measure = clips() && bucket == buckets_ - 1;
  if (measure) clipping_.store(true, std::memory_order_release);
  reduced_.store(launch, std::memory_order_release);
  if (measure) {
    const uint32_t measured = measured_.fetch_add(1) + 1;
    if (windows_.signals().Publish(WindowControl::kMeasured, measured)) {
      windows_.signals().RingOwners();
    }
  }
  const bool first_owner = windows_.self() == windows_.group().owners().first;
  const bool empty = windows_.plan().buckets()[bucket].numel == 0;
  if (update_ != nullptr ? !clips() : empty && first_owner) Finish(launch, 1);
  return absl::OkStatus();
}

int WindowOwner::Home(ChunkId id) const {
  const int chunk = windows_.plan().buckets()[id.bucket].layout.chunk_of(id.slot);
  return FoldRank(chunk, workers_ - 1, workers_);
}

ElementRange WindowOwner::Range(ChunkId id) const {
  return windows_.plan().buckets()[id.bucket].layout.range(id.slot);
}

void WindowOwner::ReduceChunk(ChunkId id, size_t chunk) {
  const StripeLayout& layout = windows_.plan().buckets()[id.bucket].layout;
  const ElementRange range = layout.range(id.slot);
  for (int position = 0; position < workers_; ++position) {
    const int rank = FoldRank(layout.chunk_of(id.slot), position, workers_);
    outs_[position] = windows_.grad(rank, id.bucket) + range.begin;
    ins_[position] = outs_[position];
  }
  const bool to_all = update_ == nullptr;
  {
    const RecordedSpan span(recorder_.get(), TraceSpan::kFold, step_.step, id.bucket, id.slot);
    FoldMean(to_all ? outs_.data() : &outs_[workers_ - 1], to_all ? workers_ : 1, ins_.data(),
             workers_, range.size(), 1.0f / static_cast<float>(workers_),
             static_cast<float>(step_.inverse_loss_scale));
  }
  if (to_all) return;
  if (clips()) {
    windows_.squares(windows_.self())[chunk] = SumOfSquares(outs_[workers_ - 1], range.size());
  } else {
    UpdateAndStore(chunk);
  }
}

// A server has no part in it.
absl::Status WindowOwner::ReducePosts(int64_t launch, int bucket) {
  if (IsWorker()) {
    const WindowPosts& posts = windows_.posts(bucket);
    const int64_t round = windows_.RoundOf(launch);
    GS_RETURN_IF_ERROR(AgreeOnStep(round - 1, [&](int rank) { return posts.note(rank, round); }));
    if (halted()) return absl::OkStatus();
    const ChunkId id{bucket, windows_.group().sole_slot(bucket)};
    const int chunk = windows_.plan().buckets()[bucket].layout.chunk_of(id.slot);
    outs_[0] = windows_.grad(windows_.self(), bucket);
    for (int position = 0; position < workers_; ++position) {
      const int rank = FoldRank(chunk, position, workers_);
      ins_[position] = rank == windows_.self() ? outs_[0] : posted_[rank].data();
      if (rank != windows_.self()) posts.Read(rank, round, posted_[rank].data());
    }
    {
      const RecordedSpan span(recorder_.get(), TraceSpan::kFold, step_.step, id.bucket, id.slot);
      FoldMean(outs_.data(), 1, ins_.data(), workers_, windows_.plan().buckets()[bucket].numel,
               1.0f / static_cast<float>(workers_), static_cast<float>(step_.inverse_loss_scale));
    }
    completed_ = launch;
    windows_.progress(windows_.self(), bucket)
        .done.store(static_cast<uint32_t>(launch), std::memory_order_release);
    posts.FetchNext(round);
  }
  LeaveBehind();
  return absl::OkStatus();
}

// `launch` is the step's last.
void WindowOwner::Clip(int64_t launch) {
  std::fill(next_.begin(), next_.end(), 0);
  const float scale =
      static_cast<float>(ClipScale(windows_.plan(), step_.max_norm, [this](ChunkId id) {
        const int owner = windows_.group().owner(id);
        return windows_.squares(owner)[next_[owner]++];
      }));
  for (size_t chunk = 0; chunk < own().chunks.size() && !halted(); ++chunk) {
    const ChunkId id = own().chunks[chunk];
    const ElementRange range = Range(id);
    if (scale != 1) Scale(windows_.grad(Home(id), id.bucket) + range.begin, range.size(), scale);
    UpdateAndStore(chunk);
  }
  clipping_.store(false, std::memory_order_release);
  for (int bucket = 0; bucket < buckets_; ++bucket) {
    Finish(launch - buckets_ + 1 + bucket,
           static_cast<uint32_t>(own().first[bucket + 1] - own().first[bucket]) + 1);
  }
}

void WindowOwner::UpdateAndStore(size_t chunk) {
  const ChunkId id = own().chunks[chunk];
  const ElementRange range = Range(id);
  const int home = Home(id);
  const RecordedSpan span(recorder_.get(), TraceSpan::kOptimize, step_.step, id.bucket, id.slot);
  const float* const mean = windows_.grad(home, id.bucket) + range.begin;
  if (windows_.sharded()) return update_(chunk, windows_.shard(id), mean, step_);
  float* const updated = windows_.param(home, id.bucket) + range.begin;
  update_(chunk, updated, mean, step_);
  for (int other = 1; other < workers_; ++other) {
    const int rank = (home + other) % workers_;
    Copy(windows_.param(rank, id.bucket) + range.begin, updated, range.size());
  }
}

}  // namespace gradsync
