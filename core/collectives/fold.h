// The arithmetic of reductions: what becomes of the elements that ranks give, on whatever way they
// come together, so that every topology, link and size gives the same bits.

#ifndef GRADSYNC_CORE_COLLECTIVES_FOLD_H_
#define GRADSYNC_CORE_COLLECTIVES_FOLD_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gradsync {

// What elements are. The numbers travel, and are those of gradsync/collectives.h and the C interface.
// A kBool is a byte, 0 or 1; others than 0 count as 1.
enum class ElementKind : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBfloat16,
  kInt8,
  kUint8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
};
constexpr int kElementKinds = 10;

// How two elements become one. kAvg is kSum and then, once, a multiplication by 1/n; of floats alone.
// kAnd, kOr and kXor are bit by bit, of integers, and of bools. Of bools kSum and kMax are as kOr,
// kProduct and kMin as kAnd. Integers wrap around. kMin and kMax of a NaN are a NaN.
enum class FoldOp : uint8_t { kSum, kAvg, kProduct, kMin, kMax, kAnd, kOr, kXor };
constexpr int kFoldOps = 8;

int64_t BytesOf(ElementKind kind);
absl::string_view ElementName(ElementKind kind);  // "float32"
absl::string_view FoldName(FoldOp op);            // "sum"

// Errors: INVALID_ARGUMENT where elements of that kind cannot be folded so, or either is none.
absl::Status CheckFold(ElementKind kind, FoldOp op);

// Bytes in order, in parts that may be cut anywhere, also within an element, and lie at any address.
using ByteParts = absl::Span<const absl::Span<const char>>;

// What one rank gives: the bytes of `parts` from `offset` on.
struct FoldInput {
  ByteParts parts;
  size_t offset = 0;
};

// Writes ((inputs[0] op inputs[1]) op ...) to `out`, for `count` elements, and the same to `copy`
// unless it is null. Each step is rounded to the kind: of float16 and bfloat16 too, which are added
// as floats. Under kAvg the end is multiplied by 1/divisor; 1: it is not the end yet.
//
// `out` and `copy` are aligned for the kind; either may be one of the inputs, from the same address
// on. CheckFold() holds, there is an input, and each has enough bytes. Thread-safe; allocates nothing
// for up to eight inputs.
void Fold(ElementKind kind, FoldOp op, absl::Span<const FoldInput> inputs, int64_t count,
          int divisor, char* out, char* copy = nullptr);

// Copies all bytes of `parts` to `out`.
void CopyParts(ByteParts parts, char* out);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_COLLECTIVES_FOLD_H_
