#include "ps_server/event_check.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace gradsync {

int64_t EventCheck::Slowest(const Chunk& chunk, int rank) const {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  bool anybody = false;
  for (const Rank& other : chunk) {
    if (other.phase != Phase::kTraining) continue;
    slowest = std::min(slowest, other.clock);
    anybody = true;
  }
  return anybody ? slowest : chunk[rank].clock;
}

std::string EventCheck::OnApplied(const ServerEvent& event, Chunk& chunk) {
  Rank& rank = chunk[event.rank];
  if (rank.phase != Phase::kTraining) return "a gradient of a rank that does not train";
  if (rank.unanswered) return "a gradient before the answer to the one before";
  if (event.clock != rank.clock + 1) return absl::StrCat("expected clock ", rank.clock + 1);
  const int64_t slowest = Slowest(chunk, event.rank);
  for (int r = 0; r < world_size_; ++r) {
    if (chunk[r].unanswered && consistency_.Allows(chunk[r].clock - slowest)) {
      return absl::StrCat("rank ", r, " may go on and was not answered");
    }
  }
  if (!consistency_.Allows(rank.clock - slowest)) return "the rank is too far ahead";
  ++rank.clock;
  ++rank.total;
  rank.unanswered = true;
  if (!consistency_.Allows(rank.clock - Slowest(chunk, event.rank))) ++waits_;
  return "";
}

std::string EventCheck::OnPulled(const ServerEvent& event, Chunk& chunk) {
  Rank& rank = chunk[event.rank];
  if (!rank.unanswered) return "an answer to nothing";
  if (event.clock != rank.clock) return absl::StrCat("expected clock ", rank.clock);
  const int64_t staleness = rank.clock - Slowest(chunk, event.rank);
  if (!consistency_.Allows(staleness)) return absl::StrCat("staleness ", staleness);
  rank.unanswered = false;
  max_staleness_ = std::max(max_staleness_, staleness);
  if (staleness >= static_cast<int64_t>(answers_.size())) answers_.resize(staleness + 1);
  ++answers_[staleness];
  return "";
}

std::string EventCheck::OnFinal(const ServerEvent& event, Chunk& chunk) {
  for (int r = 0; r < world_size_; ++r) {
    if (chunk[r].phase == Phase::kTraining && chunk[r].clock != 0) {
      return absl::StrCat("rank ", r, " still trains");
    }
  }
  Rank& rank = chunk[event.rank];
  if (rank.phase != Phase::kSettled) return "the rank has not settled";
  rank.phase = Phase::kTraining;
  rank.clock = 0;
  return "";
}

std::string EventCheck::FirstError(const ServerEvent& event, Chunk& chunk) {
  Rank& rank = chunk[event.rank];
  if (event.kind == ServerEvent::Kind::kApplied) return OnApplied(event, chunk);
  if (event.kind == ServerEvent::Kind::kPulled) return OnPulled(event, chunk);
  if (event.kind == ServerEvent::Kind::kFinal) return OnFinal(event, chunk);
  if (rank.unanswered || rank.phase != Phase::kTraining) return "left in the middle of a step";
  rank.phase = event.kind == ServerEvent::Kind::kLeft ? Phase::kLeft : Phase::kSettled;
  return "";
}

absl::Status EventCheck::Add(const ServerEvent& event) {
  Chunk& chunk = chunks_[{event.chunk.bucket, event.chunk.slot}];
  chunk.resize(world_size_);
  std::string error = FirstError(event, chunk);
  const bool final = event.kind == ServerEvent::Kind::kFinal;
  if (error.empty() && !final && event.slowest != Slowest(chunk, event.rank)) {
    error = absl::StrCat("expected slowest ", Slowest(chunk, event.rank));
  }
  if (error.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("event of kind ", static_cast<int>(event.kind), ", rank ", event.rank,
                   ", clock ", event.clock, ", bucket ", event.chunk.bucket, " slot ",
                   event.chunk.slot, ", slowest ", event.slowest, ": ", error));
}

absl::Status EventCheck::CheckSteps(const std::vector<int64_t>& steps) const {
  for (const auto& [id, chunk] : chunks_) {
    for (int r = 0; r < world_size_; ++r) {
      if (chunk[r].total == steps[r] && !chunk[r].unanswered) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("bucket ", id.first, " slot ", id.second, ": expected ", steps[r],
                       " answered gradients of rank ", r, ", found ", chunk[r].total,
                       chunk[r].unanswered ? ", the last of them not answered" : ""));
    }
  }
  return absl::OkStatus();
}

}  // namespace gradsync
