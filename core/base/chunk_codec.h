// How one chunk of floats is written as the payload of one message: as it is, in 16 bits an
// element, or as its largest elements only.
//
//   form     payload, little-endian                          lost on the way
//   kFp32    4 bytes per element                             nothing
//   kFp16    2 bytes per element, IEEE binary16              rounding; beyond 65504: see Overflow
//   kBf16    2 bytes per element, bfloat16                   rounding (8 bits of significand)
//   kSparse  per entry the element's index in the chunk      the elements that are not sent
//            (2 bytes; 4 if the chunk has more than 65536
//            elements) and its value (4 bytes, fp32),
//            indices ascending
//
// A form is known to both ends from the plan (core/plan/codec.h), so a payload carries no
// description of itself, and its size is a function of the form. Rounding is to nearest even
// (core/base/kernels.h), the same at every dispatch level. Nothing hides a number that is not
// finite: infinities and NaNs stay what they are in every form, and kSparse counts them as the
// largest.
//
// Thread-safe as far as arguments do not overlap between threads; nothing blocks.

#ifndef GRADSYNC_CORE_BASE_CHUNK_CODEC_H_
#define GRADSYNC_CORE_BASE_CHUNK_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Takes in floats that arrive as a sequence of byte runs, as a received message does.
//
// A run may begin and end anywhere, also inside a float, and may be empty or unaligned; the bits of
// the result do not depend on where the runs are cut. Bytes are little-endian IEEE single
// precision.

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

// Writes the indices of the `k` elements of largest absolute value to `out`, ascending; of equal
// ones those with the lower index. NaNs count as larger than infinities, and among themselves by
// their bits, so that the result is a function of the bits of `x` alone. k <= n <= 2^32.
//
// Three passes over `x`: a histogram of the upper bits of the absolute values finds the k-th
// largest's bin, a selection (Hoare, "Algorithm 65: FIND", 1961) within the bin finds its value,
// and a scan collects. Expected time O(n). Thread-safe, never blocks; allocates the bin.
void SelectLargest(const float* x, size_t n, size_t k, uint32_t* out);

struct ChunkForm {
  enum class Kind { kFp32, kFp16, kBf16, kSparse };

  Kind kind = Kind::kFp32;
  int64_t elements = 0;
  int64_t entries = 0;  // kSparse: how many of the elements are sent, 1 to elements

  // Of one element, or of one entry.
  int64_t unit_bytes() const;
  // Of the payload: exactly.
  int64_t bytes() const { return unit_bytes() * (kind == Kind::kSparse ? entries : elements); }
};

// What kFp16 makes of a finite element beyond 65504, the largest half.
enum class Overflow {
  kSaturates,  // 65504, with the element's sign: nobody's next sum is infinite or a NaN for it
  kInfinite,   // an infinity, for those who look for one, as a loss scaler does
};

// Writes the payload of `values` to `out`, which has room for form.bytes() and does not overlap
// `values`. kSparse takes the `entries` elements of largest absolute value, of equal ones those
// that come first; a negative zero becomes a zero. Source of the selection: Aji and Heafield,
// "Sparse Communication for Distributed Gradient Descent", EMNLP 2017.
void EncodeChunk(const ChunkForm& form, const float* values, char* out,
                 Overflow overflow = Overflow::kSaturates);

// Sets to zero those `values` that the payload at `encoded` tells in full: what is left is what
// error feedback sends later. Only for kFp32 and kSparse.
void ForgetEncoded(const ChunkForm& form, const char* encoded, float* values);

// values = what the other end decodes from their payload, when that does not depend on the payload:
// rounding, where what is too large for kFp16 saturates. For kFp32 and kSparse the values stay, but
// for negative zeros, which kSparse loses.
void RoundChunk(ChunkForm::Kind kind, float* values, size_t n);

// Takes in a payload that arrives as a sequence of byte runs, as a received message does. A run may
// begin and end anywhere; the result does not depend on where. As FloatStream, which it is for
// kFp32. Thread-compatible, never blocks, allocates nothing unless it fails.
class ChunkDecoder {
 public:
  // How an arriving value meets the one in the range. With kCopy, elements that do not arrive are
  // zero. kAddAndScale is kAdd and then, for every element, (x * a) * b: for the last contribution
  // to a mean, in the same pass over memory.
  enum class Mode { kAdd, kCopy, kAddAndScale };

  // `out` has room for form.elements and outlives this object. `a` and `b` are kAddAndScale's.
  ChunkDecoder(const ChunkForm& form, Mode mode, float* out, float a = 1, float b = 1);

  // Errors: DATA_LOSS if there are more bytes than form.bytes(), or if an index of kSparse is not
  // above the one before it and below form.elements; with what was expected and found. Then `out`
  // holds nothing of meaning.
  absl::Status Consume(absl::string_view bytes);

  // Call once, after the last run: only then the range is complete. Errors: DATA_LOSS if bytes are
  // missing.
  absl::Status Finish();

 private:
  absl::Status Take(const char* bytes, size_t units);
  void TakeHalves(const char* bytes, size_t units);
  absl::Status TakeEntries(const char* bytes, size_t units);

  const ChunkForm form_;
  const Mode mode_;
  float* const out_;
  const float a_;
  const float b_;
  const size_t unit_;
  const size_t size_;    // bytes
  size_t consumed_ = 0;  // bytes; consumed_ % unit_ of them wait in split_
  int64_t last_index_ = -1;
  char split_[8];
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_CHUNK_CODEC_H_
