#include "core/base/float_stream.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"

namespace gradsync {

FloatStream::FloatStream(Mode mode, float* out, size_t n)
    : mode_(mode), out_(out), size_(n * sizeof(float)) {}

absl::Status FloatStream::Consume(absl::string_view bytes) {
  if (bytes.size() > size_ - consumed_) {
    return absl::DataLossError(absl::StrCat("floats received: expected ", size_, " bytes, found ",
                                            consumed_ + bytes.size(), " or more"));
  }
  const size_t waiting = consumed_ % sizeof(float);
  if (waiting > 0) {
    const size_t taken = std::min(sizeof(float) - waiting, bytes.size());
    if (taken > 0) std::memcpy(split_ + waiting, bytes.data(), taken);
    // consumed_ still points into the float that this completes.
    if (waiting + taken == sizeof(float)) Take(split_, 1);
    consumed_ += taken;
    bytes.remove_prefix(taken);
  }
  const size_t whole = bytes.size() / sizeof(float);
  Take(bytes.data(), whole);
  const size_t rest = bytes.size() % sizeof(float);
  if (rest > 0) std::memcpy(split_, bytes.data() + whole * sizeof(float), rest);
  consumed_ += bytes.size();
  return absl::OkStatus();
}

absl::Status FloatStream::Finish() const {
  if (consumed_ == size_) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("floats received: expected ", size_, " bytes, found ", consumed_));
}

void FloatStream::Take(const char* bytes, size_t floats) {
  float* const to = out_ + consumed_ / sizeof(float);
  if (mode_ == Mode::kAdd) {
    AddUnaligned(to, bytes, floats);
  } else {
    Copy(to, bytes, floats);
  }
}

}  // namespace gradsync
