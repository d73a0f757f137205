#include "allreduce/ring_wire.h"

#include <utility>

#include "core/links/frames.h"

namespace gradsync {

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

}  // namespace gradsync
