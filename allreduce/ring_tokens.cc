#include "allreduce/ring_tokens.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "allreduce/ring_frames.h"
#include "core/base/status_macros.h"
#include "core/plan/plan_proto.h"
#include "core/plan/ring_schedule.h"

namespace gradsync {
namespace {

ChunkId IdOf(const proto::FrameHeader& header) {
  return {static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
}

absl::Status Differs(const proto::FrameHeader& header, const StepOptions& step) {
  return absl::FailedPreconditionError(
      absl::StrCat(DescribeFrame(header), ": ranks disagree on the step: expected ",
                   DescribeStep(step), ", found ", DescribeStep(StepOf(header))));
}

absl::Status Twice(const proto::FrameHeader& header) {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": came twice in step ", header.step()));
}

}  // namespace

RingTokens::RingTokens(const Plan& plan, int rank, int lead, bool gather_overwrites_sum)
    : plan_(plan), rank_(rank), lead_(lead), gather_overwrites_sum_(gather_overwrites_sum) {
  for (const BucketPlan& bucket : plan.buckets()) {
    buckets_.emplace_back(absl::StrCat("bucket ", buckets_.size()));
    buckets_.back().tokens.resize(bucket.layout.slots());
  }
}

bool RingTokens::IsOwn(ChunkId id) const {
  const StripeLayout& layout = plan_.buckets()[id.bucket].layout;
  return Initiator(layout.chunk_of(id.slot), plan_.world_size()) == rank_;
}

absl::StatusOr<SyncHandle> RingTokens::Launch(const StepOptions& step, int index) {
  Bucket& bucket = buckets_[index];
  if (bucket.launched) {
    return absl::FailedPreconditionError(absl::StrCat("launch of bucket ", index, " in step ",
                                                      step.step, ": its exchange of step ",
                                                      bucket.step.step, " is not complete"));
  }
  for (size_t i = 0; i < bucket.held.size(); ++i) {
    if (!IsStep(bucket.held[i].header, step)) return Differs(bucket.held[i].header, step);
  }
  bucket.launched = true;
  bucket.step = step;
  const StripeLayout& layout = plan_.buckets()[index].layout;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    bucket.tokens[slot] = Token();
    if (layout.range(slot).empty()) continue;
    ++bucket.open;
    const ChunkId id{index, slot};
    if (plan_.world_size() > 1 && IsOwn(id)) own_.push_back(id);
  }
  held_ -= static_cast<int>(bucket.held.size());
  while (!bucket.held.empty()) {
    bucket.due.push_back(bucket.held.pop_front());
    const WaitingFrame& frame = bucket.due[bucket.due.size() - 1];
    bucket.tokens[frame.header.slot()].stage = Stage::kSummed;
  }
  return bucket.promises.Begin(step.step).handle();
}

absl::optional<WaitingFrame> RingTokens::TakeDue(int index) {
  Bucket& bucket = buckets_[index];
  if (bucket.due.empty()) return absl::nullopt;
  return bucket.due.pop_front();
}

absl::Status RingTokens::CheckCurrent(const proto::FrameHeader& header) const {
  const Bucket& bucket = buckets_[header.bucket()];
  if (!bucket.launched) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), " of step ", header.step(),
        ": no exchange of this bucket is under way; its last step was ", bucket.step.step));
  }
  if (!IsStep(header, bucket.step)) return Differs(header, bucket.step);
  return absl::OkStatus();
}

absl::Status RingTokens::Hold(const proto::FrameHeader& header, Payload* payload) {
  Bucket& bucket = buckets_[header.bucket()];
  for (size_t i = 0; i < bucket.held.size(); ++i) {
    if (bucket.held[i].header.slot() == header.slot()) return Twice(header);
  }
  const int limit = lead_ * (plan_.world_size() - 1);
  if (held_ >= limit) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), " of step ", header.step(), ": expected at most ",
                     limit, " frames ahead of this rank's launches (lead ", lead_, " times ",
                     plan_.world_size() - 1, " other ranks), found one more"));
  }
  ++held_;
  bucket.held.push_back({header, std::move(*payload)});
  *payload = Payload();
  return absl::OkStatus();
}

absl::StatusOr<bool> RingTokens::OnReduce(const proto::FrameHeader& header, Payload* payload) {
  const Bucket& bucket = buckets_[header.bucket()];
  if (static_cast<int64_t>(header.step()) > bucket.step.step) {
    GS_RETURN_IF_ERROR(Hold(header, payload));
    return false;
  }
  GS_RETURN_IF_ERROR(CheckCurrent(header));
  Token& to = token(IdOf(header));
  if (to.stage != Stage::kIdle) return Twice(header);
  to.stage = Stage::kSummed;
  return true;
}

absl::StatusOr<bool> RingTokens::OnGather(const proto::FrameHeader& header, Payload* payload) {
  GS_RETURN_IF_ERROR(CheckCurrent(header));
  const ChunkId id = IdOf(header);
  Token& to = token(id);
  if (to.stage == Stage::kFinal) return Twice(header);
  if (to.stage == Stage::kIdle) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": is finished before this rank's gradient was added"));
  }
  to.stage = Stage::kFinal;
  Credit(id);
  if (gather_overwrites_sum_ && to.sum_lent) {
    to.gather = WaitingFrame{header, std::move(*payload)};
    *payload = Payload();
    return false;
  }
  return true;
}

absl::Status RingTokens::OnCredit(const proto::FrameHeader& header) {
  GS_RETURN_IF_ERROR(CheckCurrent(header));
  Token& to = token(IdOf(header));
  if (to.credited) return Twice(header);
  if (to.stage != Stage::kSummed) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": this token is not under way"));
  }
  Credit(IdOf(header));
  return absl::OkStatus();
}

void RingTokens::Credit(ChunkId id) {
  Token& to = token(id);
  if (to.credited || !IsOwn(id)) return;
  to.credited = true;
  --under_way_;
}

absl::optional<ChunkId> RingTokens::NextOwn() {
  if (own_.empty() || under_way_ >= lead_) return absl::nullopt;
  const ChunkId id = own_.pop_front();
  ++under_way_;
  token(id).stage = Stage::kSummed;
  return id;
}

void RingTokens::LendSum(ChunkId id) {
  if (!buckets_[id.bucket].launched) return;
  ++buckets_[id.bucket].lent;
  token(id).sum_lent = true;
}

void RingTokens::LendFinal(ChunkId id) {
  if (buckets_[id.bucket].launched) ++buckets_[id.bucket].lent;
}

bool RingTokens::ReturnSum(ChunkId id) {
  if (!buckets_[id.bucket].launched) return false;
  --buckets_[id.bucket].lent;
  token(id).sum_lent = false;
  return token(id).gather.has_value();
}

absl::optional<WaitingFrame> RingTokens::TakeGather(ChunkId id) {
  absl::optional<WaitingFrame> gather = std::move(token(id).gather);
  token(id).gather.reset();
  return gather;
}

void RingTokens::ReturnFinal(ChunkId id) {
  if (buckets_[id.bucket].launched) --buckets_[id.bucket].lent;
}

void RingTokens::MarkFinal(ChunkId id) {
  Bucket& bucket = buckets_[id.bucket];
  if (!bucket.launched) return;
  token(id).stage = Stage::kFinal;
  --bucket.open;
}

absl::optional<SyncPromise> RingTokens::TakeResolved(int index) {
  Bucket& bucket = buckets_[index];
  if (!bucket.launched || bucket.open > 0 || bucket.lent > 0) return absl::nullopt;
  bucket.launched = false;
  return bucket.promises.current();
}

RingTokens::Remains RingTokens::FailAll() {
  Remains remains;
  for (Bucket& bucket : buckets_) {
    if (bucket.launched) remains.promises.push_back(bucket.promises.current());
    bucket.launched = false;
    while (!bucket.held.empty()) remains.frames.push_back(bucket.held.pop_front());
    while (!bucket.due.empty()) remains.frames.push_back(bucket.due.pop_front());
    for (Token& token : bucket.tokens) {
      if (token.gather) remains.frames.push_back(*std::move(token.gather));
      token.gather.reset();
    }
  }
  own_.clear();
  held_ = 0;
  return remains;
}

}  // namespace gradsync
