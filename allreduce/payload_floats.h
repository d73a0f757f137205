#ifndef GRADSYNC_ALLREDUCE_PAYLOAD_FLOATS_H_
#define GRADSYNC_ALLREDUCE_PAYLOAD_FLOATS_H_

#include "core/base/chunk_codec.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// acc = acc + the payload's floats; the same, scaled as ChunkDecoder's kAddAndScale does; and out =
// the payload's floats. `payload.size()` must be form.bytes(), and the form not sparse.
void AddPayload(const Payload& payload, const ChunkForm& form, float* acc);
void AddPayloadAndScale(const Payload& payload, const ChunkForm& form, float* acc, float a,
                        float b);
void CopyPayload(const Payload& payload, const ChunkForm& form, float* out);

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_PAYLOAD_FLOATS_H_
