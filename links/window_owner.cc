#include "links/window_owner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/kernels.h"
#include "base/status_macros.h"
#include "links/step_note.h"
#include "plan/clip_scale.h"
#include "plan/stripes.h"

namespace gradsync {

WindowOwner::WindowOwner(GroupWindows* windows, ChunkUpdater update)
    : windows_(*windows),
      update_(std::move(update)),
      workers_(windows_.group().workers()),
      buckets_(static_cast<int>(windows_.plan().buckets().size())),
      others_(windows_.self() < workers_ ? workers_ - 1 : workers_),
      chunks_(windows_.group().OwnedChunks(windows_.self())),
      next_(windows_.group().members()),
      ins_(workers_),
      outs_(workers_) {
  for (int bucket = 0; bucket <= buckets_; ++bucket) {
    const auto first = std::find_if(chunks_.begin(), chunks_.end(),
                                    [bucket](SegmentId id) { return id.bucket >= bucket; });
    first_.push_back(first - chunks_.begin());
  }
}

bool WindowOwner::CanReduce() const {
  return windows_.signals().AllReached(WindowControl::kReady, static_cast<uint32_t>(reduced() + 1));
}

void WindowOwner::Halt() {
  halted_.store(true, std::memory_order_release);
  windows_.signals().RingSelf();
}

absl::Status WindowOwner::Reduce(absl::FunctionRef<void()> after_chunk) {
  const int64_t launch = reduced() + 1;
  const int bucket = static_cast<int>((launch - 1) % buckets_);
  if (bucket == 0) GS_RETURN_IF_ERROR(AgreeOnStep());
  for (size_t chunk = first_[bucket]; chunk < first_[bucket + 1]; ++chunk) {
    ReduceChunk(chunk);
    if (halted()) return absl::OkStatus();
    after_chunk();
  }
  const bool last = bucket == buckets_ - 1;
  if (clips() && last) Clip();
  if (halted()) return absl::OkStatus();
  reduced_.store(launch, std::memory_order_release);
  if (!clips() || last) {
    windows_.signals().Advance(WindowControl::kDone, static_cast<uint32_t>(launch));
  }
  return absl::OkStatus();
}

absl::Status WindowOwner::AgreeOnStep() {
  const std::array<uint64_t, 4> first = windows_.signals().note(0);
  for (int rank = 1; rank < workers_; ++rank) {
    const std::array<uint64_t, 4> other = windows_.signals().note(rank);
    if (other == first) continue;
    return absl::FailedPreconditionError(absl::StrCat("ranks disagree on the step: rank 0 has ",
                                                      DescribeStep(StepOf(first)), ", rank ", rank,
                                                      " has ", DescribeStep(StepOf(other))));
  }
  step_ = StepOf(first);
  last_step_.store(step_.step, std::memory_order_relaxed);
  return absl::OkStatus();
}

int WindowOwner::Home(SegmentId id) const {
  const int chunk = windows_.plan().buckets()[id.bucket].layout.chunk_of(id.slot);
  return FoldRank(chunk, workers_ - 1, workers_);
}

ElementRange WindowOwner::Range(SegmentId id) const {
  return windows_.plan().buckets()[id.bucket].layout.range(id.slot);
}

void WindowOwner::ReduceChunk(size_t chunk) {
  const SegmentId id = chunks_[chunk];
  const StripeLayout& layout = windows_.plan().buckets()[id.bucket].layout;
  const ElementRange range = layout.range(id.slot);
  for (int position = 0; position < workers_; ++position) {
    const int rank = FoldRank(layout.chunk_of(id.slot), position, workers_);
    outs_[position] = windows_.grad(rank, id.bucket) + range.begin;
    ins_[position] = outs_[position];
  }
  const bool to_all = update_ == nullptr;
  FoldMean(to_all ? outs_.data() : &outs_[workers_ - 1], to_all ? workers_ : 1, ins_.data(),
           workers_, range.size(), 1.0f / static_cast<float>(workers_),
           static_cast<float>(step_.inverse_loss_scale));
  if (to_all) {
    CountStored(range.size() * 4);
  } else if (clips()) {
    windows_.squares(windows_.self())[chunk] = SumOfSquares(outs_[workers_ - 1], range.size());
  } else {
    UpdateAndStore(chunk);
  }
}

void WindowOwner::Clip() {
  WindowSignals& signals = windows_.signals();
  signals.Advance(WindowControl::kMeasured, ++measured_);
  signals.Await([&] { return halted() || signals.AllReached(WindowControl::kMeasured, measured_); },
                kWindowSpin);
  if (halted()) return;
  std::fill(next_.begin(), next_.end(), 0);
  const float scale =
      static_cast<float>(ClipScale(windows_.plan(), step_.max_norm, [this](SegmentId id) {
        const int owner = windows_.group().owner(id);
        return windows_.squares(owner)[next_[owner]++];
      }));
  for (size_t chunk = 0; chunk < chunks_.size() && !halted(); ++chunk) {
    const SegmentId id = chunks_[chunk];
    const ElementRange range = Range(id);
    if (scale != 1) Scale(windows_.grad(Home(id), id.bucket) + range.begin, range.size(), scale);
    UpdateAndStore(chunk);
  }
}

void WindowOwner::UpdateAndStore(size_t chunk) {
  const SegmentId id = chunks_[chunk];
  const ElementRange range = Range(id);
  const int home = Home(id);
  float* const updated = windows_.param(home, id.bucket) + range.begin;
  update_(chunk, updated, windows_.grad(home, id.bucket) + range.begin, step_);
  for (int other = 1; other < workers_; ++other) {
    const int rank = (home + other) % workers_;
    Copy(windows_.param(rank, id.bucket) + range.begin, updated, range.size());
  }
  CountStored(range.size() * 4);
}

void WindowOwner::CountStored(int64_t bytes) {
  stored_bytes_.fetch_add(others_ * bytes, std::memory_order_relaxed);
  stored_messages_.fetch_add(others_, std::memory_order_relaxed);
}

}  // namespace gradsync
