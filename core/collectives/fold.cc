// Elements are folded in blocks that stay in the first-level cache: the first input is copied into
// one, the others are folded into it, and it is copied to where it belongs. What is added up most,
// float32 that lies in one piece, goes through registers instead (FoldMean() in core/base/kernels.h).

#include "core/collectives/fold.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"

namespace gradsync {
namespace {

constexpr size_t kBlockBytes = 4096;
constexpr int64_t kFloatsPerBlock = 4096;  // of the way through registers

// The loops have a constant length, so that the compiler makes vectors of them.
constexpr size_t kUnroll = 64;

// What has no type in the language. Their elements are computed with as floats, one step at a time,
// and bools as integers that are 0 or 1.
struct Float16 {
  static void ToFloats(float* out, const void* x, size_t n) {
    HalfToFloat(out, static_cast<const uint16_t*>(x), n);
  }
  static void FromFloats(void* out, const float* x, size_t n) {
    FloatToHalf(static_cast<uint16_t*>(out), x, n);
  }
};
struct Bfloat16 {
  static void ToFloats(float* out, const void* x, size_t n) {
    Bfloat16ToFloat(out, static_cast<const uint16_t*>(x), n);
  }
  static void FromFloats(void* out, const float* x, size_t n) {
    FloatToBfloat16(static_cast<uint16_t*>(out), x, n);
  }
};
struct Bool {};

template <typename T>
constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

template <typename T, FoldOp op>
constexpr bool kHas =
    std::is_floating_point_v<T> || kIsHalf<T> ? op <= FoldOp::kMax : op != FoldOp::kAvg;

template <FoldOp op, typename T>
T Combine(T a, T b) {
  // Unsigned integers wrap around.
  using Word = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  if constexpr (op == FoldOp::kSum || op == FoldOp::kAvg) {
    return static_cast<T>(static_cast<Word>(a) + static_cast<Word>(b));
  } else if constexpr (op == FoldOp::kProduct) {
    return static_cast<T>(static_cast<Word>(a) * static_cast<Word>(b));
  } else if constexpr (op == FoldOp::kMin) {
    return a < b || a != a ? a : b;
  } else if constexpr (op == FoldOp::kMax) {
    return a > b || a != a ? a : b;
  } else if constexpr (op == FoldOp::kAnd) {
    return static_cast<T>(a & b);
  } else if constexpr (op == FoldOp::kOr) {
    return static_cast<T>(a | b);
  } else {
    return static_cast<T>(a ^ b);
  }
}

template <FoldOp op, typename T>
void CombineEach(T* __restrict acc, const T* __restrict x, size_t n) {
  size_t i = 0;
  for (; i + kUnroll <= n; i += kUnroll) {
    for (size_t k = 0; k < kUnroll; ++k) acc[i + k] = Combine<op>(acc[i + k], x[i + k]);
  }
  for (; i < n; ++i) acc[i] = Combine<op>(acc[i], x[i]);
}

// acc = acc op x, of one block.
using Step = void (*)(void* acc, const void* x, size_t n);

template <typename T, FoldOp op>
void FoldBlock(void* acc, const void* x, size_t n) {
  if constexpr (kIsHalf<T>) {
    alignas(64) float a[kBlockBytes / sizeof(uint16_t)];
    alignas(64) float b[kBlockBytes / sizeof(uint16_t)];
    T::ToFloats(a, acc, n);
    T::ToFloats(b, x, n);
    CombineEach<op>(a, b, n);
    T::FromFloats(acc, a, n);
  } else if constexpr (std::is_same_v<T, Bool>) {
    auto* const a = static_cast<uint8_t*>(acc);
    const auto* const b = static_cast<const uint8_t*>(x);
    for (size_t i = 0; i < n; ++i) a[i] = Combine<op, int>(a[i] != 0, b[i] != 0) != 0;
  } else if constexpr (std::is_same_v<T, float> && op <= FoldOp::kAvg) {
    Add(static_cast<float*>(acc), static_cast<const float*>(x), n);
  } else {
    CombineEach<op>(static_cast<T*>(acc), static_cast<const T*>(x), n);
  }
}

template <typename T, FoldOp op>
constexpr Step StepFor() {
  if constexpr (kHas<T, op>) return FoldBlock<T, op>;
  return nullptr;
}

template <typename T, int... ops>
Step Choose(FoldOp op, std::integer_sequence<int, ops...>) {
  constexpr Step kSteps[] = {StepFor<T, static_cast<FoldOp>(ops)>()...};
  return kSteps[static_cast<int>(op)];
}

// Null where there is none.
Step StepOf(ElementKind kind, FoldOp op) {
  constexpr auto kOps = std::make_integer_sequence<int, kFoldOps>();
  switch (kind) {
    case ElementKind::kFloat32:
      return Choose<float>(op, kOps);
    case ElementKind::kFloat64:
      return Choose<double>(op, kOps);
    case ElementKind::kFloat16:
      return Choose<Float16>(op, kOps);
    case ElementKind::kBfloat16:
      return Choose<Bfloat16>(op, kOps);
    case ElementKind::kInt8:
      return Choose<int8_t>(op, kOps);
    case ElementKind::kUint8:
      return Choose<uint8_t>(op, kOps);
    case ElementKind::kInt16:
      return Choose<int16_t>(op, kOps);
    case ElementKind::kInt32:
      return Choose<int32_t>(op, kOps);
    case ElementKind::kInt64:
      return Choose<int64_t>(op, kOps);
    case ElementKind::kBool:
      return Choose<Bool>(op, kOps);
  }
  return nullptr;
}

template <typename T>
void ScaleHalves(void* block, size_t n, float scale) {
  alignas(64) float floats[kBlockBytes / sizeof(uint16_t)];
  T::ToFloats(floats, block, n);
  Scale(floats, n, scale);
  T::FromFloats(block, floats, n);
}

void Divide(ElementKind kind, void* block, size_t n, int divisor) {
  const float scale = 1.0f / static_cast<float>(divisor);
  if (kind == ElementKind::kFloat32) {
    Scale(static_cast<float*>(block), n, scale);
  } else if (kind == ElementKind::kFloat16) {
    ScaleHalves<Float16>(block, n, scale);
  } else if (kind == ElementKind::kBfloat16) {
    ScaleHalves<Bfloat16>(block, n, scale);
  } else if (kind == ElementKind::kFloat64) {
    auto* const doubles = static_cast<double*>(block);
    for (size_t i = 0; i < n; ++i) doubles[i] *= 1.0 / divisor;
  }
}

// Reads an input from its beginning to its end.
class Reader {
 public:
  explicit Reader(const FoldInput& input) : parts_(input.parts), offset_(input.offset) {}

  // The next `bytes`, aligned for elements of `alignment` bytes: where they are, or in `block`.
  const void* Next(size_t bytes, size_t alignment, void* block) {
    SkipEnds();
    const absl::Span<const char> part = parts_[part_];
    const char* const here = part.data() + offset_;
    if (part.size() - offset_ >= bytes && reinterpret_cast<uintptr_t>(here) % alignment == 0) {
      offset_ += bytes;
      return here;
    }
    for (size_t done = 0; done < bytes;) {
      SkipEnds();
      const size_t most = std::min(bytes - done, parts_[part_].size() - offset_);
      std::memcpy(static_cast<char*>(block) + done, parts_[part_].data() + offset_, most);
      offset_ += most;
      done += most;
    }
    return block;
  }

 private:
  void SkipEnds() {
    while (offset_ >= parts_[part_].size()) offset_ -= parts_[part_++].size();
  }

  const ByteParts parts_;
  size_t part_ = 0;
  size_t offset_;
};

constexpr size_t kInlined = 8;

// What FoldMean() can do: false where an input is in several parts, or not aligned.
bool SumFloats(absl::Span<const FoldInput> inputs, int64_t count, float scale, char* out,
               char* copy) {
  absl::InlinedVector<const float*, kInlined> ins;
  for (const FoldInput& input : inputs) {
    const char* const first = input.parts[0].data() + input.offset;
    if (input.parts.size() != 1 || reinterpret_cast<uintptr_t>(first) % alignof(float) != 0) {
      return false;
    }
    ins.push_back(reinterpret_cast<const float*>(first));
  }
  auto* to = reinterpret_cast<float*>(out);
  const int64_t most = copy == nullptr ? count : kFloatsPerBlock;
  for (int64_t done = 0; done < count; done += most) {
    const size_t n = static_cast<size_t>(std::min(most, count - done));
    FoldMean(&to, 1, ins.data(), static_cast<int>(ins.size()), n, scale, 1.0f);
    if (copy != nullptr) std::memcpy(copy + done * sizeof(float), to, n * sizeof(float));
    for (const float*& in : ins) in += n;
    to += n;
  }
  return true;
}

}  // namespace

int64_t BytesOf(ElementKind kind) {
  constexpr int64_t kBytes[kElementKinds] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1};
  return kBytes[static_cast<int>(kind)];
}

absl::string_view ElementName(ElementKind kind) {
  constexpr absl::string_view kNames[kElementKinds] = {"float32", "float64", "float16", "bfloat16",
                                                       "int8",    "uint8",   "int16",   "int32",
                                                       "int64",   "bool"};
  return kNames[static_cast<int>(kind)];
}

absl::string_view FoldName(FoldOp op) {
  constexpr absl::string_view kNames[kFoldOps] = {"sum", "avg", "product", "min",
                                                  "max", "and", "or",      "xor"};
  return kNames[static_cast<int>(op)];
}

absl::Status CheckFold(ElementKind kind, FoldOp op) {
  if (static_cast<int>(kind) >= kElementKinds) {
    return absl::InvalidArgumentError(absl::StrCat(
        "type of elements: expected 0 to ", kElementKinds - 1, ", found ", static_cast<int>(kind)));
  }
  if (static_cast<int>(op) >= kFoldOps) {
    return absl::InvalidArgumentError(
        absl::StrCat("operation: expected 0 to ", kFoldOps - 1, ", found ", static_cast<int>(op)));
  }
  if (StepOf(kind, op) != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("operation: expected one that ", ElementName(kind),
                                                 " has, found ", FoldName(op)));
}

void Fold(ElementKind kind, FoldOp op, absl::Span<const FoldInput> inputs, int64_t count,
          int divisor, char* out, char* copy) {
  if (count == 0) return;
  const int by = op == FoldOp::kAvg ? divisor : 1;
  if (kind == ElementKind::kFloat32 && (op == FoldOp::kSum || op == FoldOp::kAvg) &&
      SumFloats(inputs, count, 1.0f / static_cast<float>(by), out, copy)) {
    return;
  }
  const Step step = StepOf(kind, op);
  const size_t element = static_cast<size_t>(BytesOf(kind));
  const size_t all = static_cast<size_t>(count) * element;
  absl::InlinedVector<Reader, kInlined> readers(inputs.begin(), inputs.end());
  alignas(64) char acc[kBlockBytes];
  alignas(64) char cut[kBlockBytes];
  for (size_t done = 0; done < all; done += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, all - done);
    const void* const first = readers[0].Next(bytes, element, acc);
    if (first != acc) std::memcpy(acc, first, bytes);
    for (size_t i = 1; i < readers.size(); ++i) {
      step(acc, readers[i].Next(bytes, element, cut), bytes / element);
    }
    if (by != 1) Divide(kind, acc, bytes / element, by);
    std::memcpy(out + done, acc, bytes);
    if (copy != nullptr) std::memcpy(copy + done, acc, bytes);
  }
}

void CopyParts(ByteParts parts, char* out) {
  for (const absl::Span<const char> part : parts) {
    if (!part.empty()) std::memcpy(out, part.data(), part.size());
    out += part.size();
  }
}

}  // namespace gradsync
