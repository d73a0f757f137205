#include "ps_server/chunk_clocks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradsync {

ChunkClocks::ChunkClocks(ChunkId id, int world_size, Consistency consistency, ServerEventSink sink)
    : chunk_(id), consistency_(consistency), sink_(std::move(sink)), ranks_(world_size) {}

absl::StatusOr<bool> ChunkClocks::Offer(Gradient gradient) {
  MutexLock lock(&mutex_);
  Rank& rank = ranks_[gradient.rank];
  if (owner_ == Owner::kAcquired || rank.phase != Phase::kTraining || rank.offered) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", gradient.rank, " pushed a chunk of step ", gradient.step.step, " ",
                     rank.phase != Phase::kTraining ? "after it had settled"
                     : rank.offered ? absl::StrCat("before step ", rank.step, " was answered")
                                    : "while its parameters or state are being set"));
  }
  rank.offered = true;
  rank.step = gradient.step.step;
  held_.push_back(std::move(gradient));
  if (owner_ != Owner::kNobody) return false;
  owner_ = Owner::kWorker;
  return true;
}

absl::StatusOr<bool> ChunkClocks::Settle(int rank) {
  return Depart(rank, Phase::kSettled, ServerEvent::Kind::kSettled);
}

absl::StatusOr<bool> ChunkClocks::Leave(int rank) {
  return Depart(rank, Phase::kLeft, ServerEvent::Kind::kLeft);
}

absl::StatusOr<bool> ChunkClocks::Depart(int rank, Phase phase, ServerEvent::Kind kind) {
  MutexLock lock(&mutex_);
  if (ranks_[rank].offered || ranks_[rank].phase != Phase::kTraining ||
      owner_ == Owner::kAcquired) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, " left: expected it between its steps, found ",
        ranks_[rank].offered ? absl::StrCat("step ", ranks_[rank].step, " not answered")
                             : "that it had left already"));
  }
  ranks_[rank].phase = phase;
  Log(kind, rank);
  if (owner_ != Owner::kNobody) return false;
  owner_ = Owner::kWorker;
  return true;
}

int64_t ChunkClocks::Slowest(int rank) const {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (const Rank& other : ranks_) {
    if (other.phase == Phase::kTraining) slowest = std::min(slowest, other.clock);
  }
  return slowest == std::numeric_limits<int64_t>::max() ? ranks_[rank].clock : slowest;
}

void ChunkClocks::Log(ServerEvent::Kind kind, int rank) const {
  if (sink_) sink_({kind, rank, ranks_[rank].clock, chunk_, Slowest(rank)});
}

void ChunkClocks::TakeDue(Work* work) {
  const int64_t slowest = Slowest(0);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (!rank.applied) continue;
    const Answer answer = {static_cast<int>(r), rank.step, rank.clock - slowest};
    if (!consistency_.Allows(answer.staleness)) {
      if (!std::exchange(rank.deferred, true)) work->deferred.push_back(answer);
      continue;
    }
    rank.offered = rank.applied = rank.deferred = false;
    work->answers.push_back(answer);
    Log(ServerEvent::Kind::kPulled, static_cast<int>(r));
  }
}

void ChunkClocks::TakeFinal(Work* work) {
  int settled = 0;
  for (const Rank& rank : ranks_) {
    if (rank.phase == Phase::kTraining) return;
    settled += rank.phase == Phase::kSettled;
  }
  if (settled == 0) return;
  work->final = true;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].phase != Phase::kSettled) continue;
    work->answers.push_back({static_cast<int>(r), ranks_[r].step, 0});
    Log(ServerEvent::Kind::kFinal, static_cast<int>(r));
  }
  for (Rank& rank : ranks_) {
    if (rank.phase == Phase::kSettled) rank = Rank();
  }
}

absl::optional<ChunkClocks::Work> ChunkClocks::Next() {
  Work work;
  MutexLock lock(&mutex_);
  TakeDue(&work);
  if (!work.answers.empty() || !work.deferred.empty()) return work;
  if (!held_.empty()) {
    work.apply = std::move(held_.front());
    held_.pop_front();
    return work;
  }
  TakeFinal(&work);
  if (!work.answers.empty()) return work;
  owner_ = Owner::kNobody;
  freed_.SignalAll();
  return absl::nullopt;
}

void ChunkClocks::Applied(int rank) {
  MutexLock lock(&mutex_);
  ranks_[rank].applied = true;
  ++ranks_[rank].clock;
  Log(ServerEvent::Kind::kApplied, rank);
}

bool ChunkClocks::Quiet() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.phase == Phase::kLeft || (!rank.offered && rank.clock == 0);
  });
}

absl::Status ChunkClocks::Acquire() {
  MutexLock lock(&mutex_);
  while (owner_ == Owner::kWorker && Quiet()) freed_.Wait(&mutex_);
  if (owner_ != Owner::kNobody || !Quiet()) {
    return absl::FailedPreconditionError(
        "expected a time when all workers have settled, found steps under way");
  }
  owner_ = Owner::kAcquired;
  return absl::OkStatus();
}

void ChunkClocks::Release() {
  MutexLock lock(&mutex_);
  owner_ = Owner::kNobody;
  freed_.SignalAll();
}

}  // namespace gradsync
