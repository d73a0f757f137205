#include "allreduce/payload_floats.h"

namespace gradsync {
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
