#include "core/links/make_frame.h"

#include <memory>
#include <utility>

namespace gradsync {

OutgoingFrame FrameOf(proto::FrameHeader::Kind kind) {
  OutgoingFrame frame;
  frame.header.set_kind(kind);
  return frame;
}

void SetPayload(std::string bytes, OutgoingFrame* frame) {
  auto kept = std::make_shared<const std::string>(std::move(bytes));
  frame->payload = absl::MakeConstSpan(kept->data(), kept->size());
  frame->released = [kept] {};
}

}  // namespace gradsync
