#include "allreduce/payload_floats.h"

#include "base/float_stream.h"

namespace gradsync {
namespace {

void Take(const Payload& payload, FloatStream stream) {
  for (absl::Span<const char> part : payload.parts)
    stream.Consume({part.data(), part.size()}).IgnoreError();
}

}  // namespace

// The callers have checked the size, which is the only thing that Consume() can object to.
void AddPayload(const Payload& payload, float* acc, int64_t n) {
  Take(payload, FloatAdder(acc, n));
}

void CopyPayload(const Payload& payload, float* out, int64_t n) {
  Take(payload, FloatCopier(out, n));
}

}  // namespace gradsync
