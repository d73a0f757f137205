// Takes in floats that arrive as a sequence of byte runs, as a received message does.
//
// A run may begin and end anywhere, also inside a float, and may be empty or unaligned; the bits of
// the result do not depend on where the runs are cut. Bytes are little-endian IEEE single
// precision.
#ifndef GRADSYNC_CORE_BASE_FLOAT_STREAM_H_
#define GRADSYNC_CORE_BASE_FLOAT_STREAM_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Fills a range of floats once, front to back. Neither owns the range nor keeps a byte run after
// Consume. Thread-compatible, never blocks, allocates nothing unless it fails.
class FloatStream {
 public:
  // How an arriving float meets the one in the range.
  enum class Mode { kAdd, kCopy };

  // `out` has room for `n` floats and outlives this object.
  FloatStream(Mode mode, float* out, size_t n);

  // Takes in the next bytes of the range. On error it has taken in nothing.
  // Errors: DATA_LOSS if the range would overflow, with the bytes expected and found.
  absl::Status Consume(absl::string_view bytes);

  // Call after the last run. Errors: DATA_LOSS if bytes are missing, with the bytes expected and
  // found.
  absl::Status Finish() const;

  // Bytes taken in so far.
  size_t consumed() const { return consumed_; }

 private:
  void Take(const char* bytes, size_t floats);

  const Mode mode_;
  float* const out_;
  const size_t size_;    // bytes
  size_t consumed_ = 0;  // bytes; consumed_ % sizeof(float) of them wait in split_
  char split_[sizeof(float)];
};

// acc = acc + what arrives.
class FloatAdder : public FloatStream {
 public:
  FloatAdder(float* acc, size_t n) : FloatStream(Mode::kAdd, acc, n) {}
};

// out = what arrives.
class FloatCopier : public FloatStream {
 public:
  FloatCopier(float* out, size_t n) : FloatStream(Mode::kCopy, out, n) {}
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_FLOAT_STREAM_H_
