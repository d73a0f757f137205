#include "allreduce/ring_norm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "allreduce/ring_tokens.h"
#include "core/plan/plan.h"
#include "core/plan/plan_proto.h"

namespace gradsync {

RingNorm::RingNorm(const Plan& plan, int rank)
    : plan_(plan), rank_(rank), squares_(plan.world_size()) {
  for (int r = 0; r < plan.world_size(); ++r)
    owned_.push_back(static_cast<int>(OwnedChunks(plan, r).size()));
}

void RingNorm::Launched(const StepOptions& step, int bucket) {
  if (bucket == 0) {
    step_ = step;
    launches_missing_ = static_cast<int>(plan_.buckets().size());
    means_missing_ = owned_[rank_];
    own_sent_ = false;
  }
  --launches_missing_;
}

bool RingNorm::TakeOwnDue() {
  if (step_.max_norm <= 0 || owned_[rank_] == 0 || own_sent_) return false;
  if (launches_missing_ > 0 || means_missing_ > 0) return false;
  own_sent_ = true;
  return true;
}

absl::Status RingNorm::Set(int rank, const proto::FrameHeader& header, Numbers squares) {
  if (!IsStep(header, step_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("SQUARES of rank ", rank, ": ranks disagree on the step: expected ",
                     DescribeStep(step_), ", found ", DescribeStep(StepOf(header))));
  }
  if (step_.max_norm <= 0 || squares_[rank] != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("SQUARES of rank ", rank, ": expected ",
                                                   step_.max_norm <= 0 ? "none" : "them once",
                                                   " in ", DescribeStep(step_)));
  }
  squares_[rank] = std::move(squares);
  return absl::OkStatus();
}

absl::optional<double> RingNorm::TakeScale() {
  if (!own_sent_) return absl::nullopt;
  for (size_t rank = 0; rank < squares_.size(); ++rank) {
    if (owned_[rank] > 0 && squares_[rank] == nullptr) return absl::nullopt;
  }
  std::vector<size_t> next(squares_.size(), 0);
  const double scale = ClipScale(plan_, step_.max_norm, [&](ChunkId id) {
    const int owner = plan_.buckets()[id.bucket].layout.chunk_of(id.slot);
    return (*squares_[owner])[next[owner]++];
  });
  for (Numbers& numbers : squares_) numbers = nullptr;
  return scale;
}

}  // namespace gradsync
