// Chunks on their way, for a recording of steps (core/base/trace_recorder.h).

#ifndef GRADSYNC_CORE_LINKS_RECORD_FRAMES_H_
#define GRADSYNC_CORE_LINKS_RECORD_FRAMES_H_

#include <cstddef>
#include <memory>

#include "core/base/trace_recorder.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// Just before `frame` is given to a stream to `peer`: records it, if it is a chunk of a step that
// `recorder`, which may be null, wants, from here until its payload is released. Thread-safe.
void RecordSend(const std::shared_ptr<TraceRecorder>& recorder, int peer, OutgoingFrame* frame);

// When a frame of so many bytes of payload has come from `peer`.
void RecordReceive(TraceRecorder* recorder, int peer, const proto::FrameHeader& header,
                   size_t bytes);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_RECORD_FRAMES_H_
