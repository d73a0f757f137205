#include "ps_server/client/server_clock.h"

#include "absl/status/status.h"
#include "core/group/process_trace.h"
#include "proto/step_trace.pb.h"

namespace gradsync {

OutgoingFrame ServerClock::Ask() {
  OutgoingFrame frame;
  frame.header.set_kind(proto::FrameHeader::TRACE);
  frame.header.set_count(asked_ < kClocks ? 0 : 1);
  ++asked_;
  asked_ns_ = ClockNow();
  return frame;
}

absl::StatusOr<absl::optional<std::string>> ServerClock::Answer(absl::string_view bytes) {
  const int64_t now = ClockNow();
  proto::ProcessTrace trace;
  if (answered_ == asked_ || !trace.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError("TRACE: expected a ProcessTrace that was asked for");
  }
  ++answered_;
  const int64_t error = (now - asked_ns_ + 1) / 2;
  if (error < error_ns_) {
    error_ns_ = error;
    offset_ns_ = asked_ns_ + error - trace.now_ns();
  }
  if (answered_ <= kClocks) return absl::optional<std::string>();
  const bool same = trace.clock() == ClockName();
  trace.set_offset_ns(same ? 0 : offset_ns_);
  trace.set_error_ns(same ? 0 : error_ns_);
  return absl::make_optional(trace.SerializeAsString());
}

}  // namespace gradsync
