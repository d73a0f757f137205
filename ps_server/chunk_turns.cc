#include "ps_server/chunk_turns.h"

#include <cstddef>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/plan/stripes.h"

namespace gradsync {

ChunkTurns::ChunkTurns(int chunk, int world_size) : chunk_(chunk), world_size_(world_size) {}

absl::StatusOr<bool> ChunkTurns::Offer(int rank, Payload payload) {
  const int position = FoldPosition(chunk_, rank, world_size_);
  MutexLock lock(&mutex_);
  if (owner_ == Owner::kAcquired) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " pushed a chunk while its parameters or state are being set"));
  }
  if (position < next_ || held_.contains(position)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " pushed a chunk twice in one step"));
  }
  held_.emplace(position, std::move(payload));
  if (owner_ != Owner::kNobody || position != next_) return false;
  owner_ = Owner::kFolder;
  return true;
}

absl::optional<ChunkTurns::Turn> ChunkTurns::Next() {
  MutexLock lock(&mutex_);
  const auto held = held_.find(next_);
  if (held == held_.end()) {
    owner_ = Owner::kNobody;
    return absl::nullopt;
  }
  Turn turn;
  turn.rank = FoldRank(chunk_, next_, world_size_);
  turn.first = next_ == 0;
  turn.last = next_ == world_size_ - 1;
  turn.payload = std::move(held->second);
  held_.erase(held);
  ++next_;
  return turn;
}

absl::Status ChunkTurns::Acquire() {
  MutexLock lock(&mutex_);
  if (owner_ != Owner::kNobody || next_ != 0 || !held_.empty()) {
    return absl::FailedPreconditionError("expected a time between steps, found a fold under way");
  }
  owner_ = Owner::kAcquired;
  return absl::OkStatus();
}

void ChunkTurns::Restart() {
  constexpr size_t kKept = 15;  // entries: with more workers the table is made anew in each step
  MutexLock lock(&mutex_);
  if (held_.capacity() > kKept) absl::flat_hash_map<int, Payload>().swap(held_);
  next_ = 0;
  owner_ = Owner::kNobody;
}

}  // namespace gradsync
