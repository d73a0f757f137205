#ifndef GRADSYNC_ALLREDUCE_PAYLOAD_FLOATS_H_
#define GRADSYNC_ALLREDUCE_PAYLOAD_FLOATS_H_

#include <cstdint>

#include "links/frame_stream.h"

namespace gradsync {

// acc = acc + the payload's floats, and out = the payload's floats. `payload.size()` must be 4 * n.
void AddPayload(const Payload& payload, float* acc, int64_t n);
void CopyPayload(const Payload& payload, float* out, int64_t n);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_PAYLOAD_FLOATS_H_
