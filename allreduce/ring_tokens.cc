#include "allreduce/ring_tokens.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/plan/plan_proto.h"
#include "core/plan/ring_schedule.h"

namespace gradsync {
namespace {

absl::Status Unexpected(const proto::FrameHeader& header, absl::string_view what, int64_t expected,
                        int64_t found) {
  return absl::InvalidArgumentError(
      absl::StrCat(DescribeFrame(header), ": expected ", what, " ", expected, ", found ", found));
}

// Checks that the header names a chunk that has elements.
absl::Status CheckChunk(const Plan& plan, const proto::FrameHeader& header) {
  if (header.bucket() >= plan.buckets().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": expected a bucket below ", plan.buckets().size()));
  }
  const StripeLayout& layout = plan.buckets()[header.bucket()].layout;
  if (header.slot() >= static_cast<uint32_t>(layout.slots())) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": expected a slot below ", layout.slots()));
  }
  if (layout.range(header.slot()).empty()) {
    return absl::InvalidArgumentError(absl::StrCat(DescribeFrame(header), ": that chunk is empty"));
  }
  return absl::OkStatus();
}

absl::Status CheckStepAndHop(const proto::FrameHeader& header, int expected_hop) {
  if (header.step() < 1 || header.step() > INT64_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": expected a step of at least 1, found ", header.step()));
  }
  if (expected_hop == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        DescribeFrame(header), ": this rank receives none, for it is where the phase begins"));
  }
  if (static_cast<int64_t>(header.hop()) != expected_hop)
    return Unexpected(header, "hop", expected_hop, header.hop());
  return absl::OkStatus();
}

}  // namespace

proto::FrameHeader RingHeader(proto::FrameHeader::Kind kind, const StepOptions& step, ChunkId id,
                              int hop) {
  proto::FrameHeader header;
  header.set_kind(kind);
  header.set_bucket(id.bucket);
  header.set_slot(id.slot);
  header.set_hop(hop);
  if (step.step != 0) SetStep(step, &header);
  return header;
}

bool IsStep(const proto::FrameHeader& header, const StepOptions& step) {
  return StepOf(header) == step;
}

std::string DescribeFrame(const proto::FrameHeader& header) {
  return absl::StrCat(proto::FrameHeader::Kind_Name(header.kind()), " of bucket ", header.bucket(),
                      " slot ", header.slot());
}

std::vector<ChunkId> OwnedChunks(const Plan& plan, int rank) {
  std::vector<ChunkId> owned;
  for (size_t bucket = 0; bucket < plan.buckets().size(); ++bucket) {
    const StripeLayout& layout = plan.buckets()[bucket].layout;
    for (int slot = rank; slot < layout.slots(); slot += plan.world_size()) {
      if (!layout.range(slot).empty()) owned.push_back({static_cast<int>(bucket), slot});
    }
  }
  return owned;
}

absl::Status CheckRingFrame(const Plan& plan, int rank, const proto::FrameHeader& header,
                            size_t payload_bytes, Returned returned) {
  const int n = plan.world_size();
  int64_t expected_bytes = 0;
  if (header.kind() == proto::FrameHeader::SQUARES) {
    if (header.slot() >= static_cast<uint32_t>(n))
      return Unexpected(header, "a rank below", n, header.slot());
    const int origin = static_cast<int>(header.slot());
    GS_RETURN_IF_ERROR(CheckStepAndHop(header, (rank - origin + n) % n));
    expected_bytes = 8 * static_cast<int64_t>(OwnedChunks(plan, origin).size());
    if (expected_bytes == 0) return Unexpected(header, "owned chunks of that rank, at least", 1, 0);
  } else {
    GS_RETURN_IF_ERROR(CheckChunk(plan, header));
    const StripeLayout& layout = plan.buckets()[header.bucket()].layout;
    const int chunk = layout.chunk_of(header.slot());
    const int64_t elements = layout.range(header.slot()).size();
    expected_bytes = elements * 4;
    switch (header.kind()) {
      case proto::FrameHeader::REDUCE:
        GS_RETURN_IF_ERROR(CheckStepAndHop(header, ReduceHop(chunk, rank, n)));
        expected_bytes = GradientForm(plan.codec(), elements).bytes();
        break;
      case proto::FrameHeader::GATHER:
        GS_RETURN_IF_ERROR(CheckStepAndHop(header, GatherHop(chunk, rank, n)));
        expected_bytes = ReturnedForm(plan.codec(), elements, n, returned).bytes();
        break;
      case proto::FrameHeader::SHARD:
        GS_RETURN_IF_ERROR(CheckStepAndHop(header, GatherHop(chunk, rank, n)));
        break;
      case proto::FrameHeader::CREDIT:
        if (Initiator(chunk, n) != rank)
          return Unexpected(header, "initiator", Initiator(chunk, n), rank);
        GS_RETURN_IF_ERROR(CheckStepAndHop(header, GatherHop(chunk, rank, n)));
        expected_bytes = 0;
        break;
      case proto::FrameHeader::PARAMETERS:
        if (rank == 0 || static_cast<int64_t>(header.hop()) != rank)
          return Unexpected(header, "hop", rank, header.hop());
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat(DescribeFrame(header), ": not a frame of the ring"));
    }
  }
  if (static_cast<int64_t>(payload_bytes) != expected_bytes) {
    return Unexpected(header, "bytes of payload", expected_bytes, payload_bytes);
  }
  return absl::OkStatus();
}

RingWire::RingWire(const Plan& plan, int connections, Send send,
                   std::shared_ptr<TraceRecorder> recorder, int next)
    : connections_(connections),
      send_(std::move(send)),
      recorder_(std::move(recorder)),
      next_(next) {
  int tokens = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    first_token_.push_back(tokens);
    tokens += bucket.layout.slots();
  }
}

int RingWire::ConnectionOf(const proto::FrameHeader& header) const {
  return (first_token_[header.bucket()] + static_cast<int>(header.slot())) % connections_;
}

void RingWire::SendChunk(proto::FrameHeader header, absl::Span<const char> payload, bool urgent,
                         Release released) {
  const int connection = ConnectionOf(header);
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.payload = payload;
  frame.released = std::move(released);
  frame.urgent = urgent;
  counter_.Sent(static_cast<int64_t>(frame.payload.size()));
  RecordSend(recorder_, next_, &frame);
  send_(connection, std::move(frame));
}

void RingWire::SendNotice(proto::FrameHeader header) {
  const int connection = ConnectionOf(header);
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.urgent = true;
  send_(connection, std::move(frame));
}

void RingWire::SendNumbers(proto::FrameHeader header,
                           std::shared_ptr<const std::vector<double>> numbers) {
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.payload = {reinterpret_cast<const char*>(numbers->data()),
                   numbers->size() * sizeof(double)};
  frame.released = [numbers = std::move(numbers)] {};
  frame.urgent = true;
  send_(0, std::move(frame));
}

namespace {

void Take(const Payload& payload, ChunkDecoder decoder) {
  for (absl::Span<const char> part : payload.parts)
    decoder.Consume({part.data(), part.size()}).IgnoreError();
}

}  // namespace

// The callers have checked the size, which is the only thing that Consume() can object to.
void AddPayload(const Payload& payload, const ChunkForm& form, float* acc) {
  Take(payload, ChunkDecoder(form, ChunkDecoder::Mode::kAdd, acc));
}

void AddPayloadAndScale(const Payload& payload, const ChunkForm& form, float* acc, float a,
                        float b) {
  Take(payload, ChunkDecoder(form, ChunkDecoder::Mode::kAddAndScale, acc, a, b));
}

void CopyPayload(const Payload& payload, const ChunkForm& form, float* out) {
  Take(payload, ChunkDecoder(form, ChunkDecoder::Mode::kCopy, out));
}

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

RingTokens::RingTokens(const Plan& plan, int rank, int lead, bool gather_overwrites_sum,
                       const std::weak_ptr<SyncDriver>& driver)
    : plan_(plan), rank_(rank), lead_(lead), gather_overwrites_sum_(gather_overwrites_sum) {
  for (const BucketPlan& bucket : plan.buckets()) {
    buckets_.emplace_back(absl::StrCat("bucket ", buckets_.size()), driver);
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
