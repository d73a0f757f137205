#include "allreduce/ring_frames.h"

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

}  // namespace gradsync
