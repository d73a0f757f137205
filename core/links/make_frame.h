// Frames with a payload of their own, for what is small: messages, not gradients.

#ifndef GRADSYNC_CORE_LINKS_MAKE_FRAME_H_
#define GRADSYNC_CORE_LINKS_MAKE_FRAME_H_

#include <string>

#include "core/links/frame_stream.h"
#include "proto/frame.pb.h"

namespace gradsync {

// A frame of this kind, with nothing in it. Thread-safe, as all here.
OutgoingFrame FrameOf(proto::FrameHeader::Kind kind);

// Gives `frame` a payload, which it then owns.
void SetPayload(std::string bytes, OutgoingFrame* frame);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_MAKE_FRAME_H_
