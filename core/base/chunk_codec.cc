#include "core/base/chunk_codec.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/kernels.h"
#include "core/base/status_macros.h"

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

namespace {

constexpr int kShift = 20;  // leaves the exponent and three bits of the fraction
constexpr size_t kBins = size_t{1} << (31 - kShift);

// Orders as the absolute value does.
uint32_t Magnitude(const float* x) {
  uint32_t bits;
  std::memcpy(&bits, x, sizeof(bits));
  return bits & 0x7fffffffu;
}

}  // namespace

void SelectLargest(const float* x, size_t n, size_t k, uint32_t* out) {
  if (k == 0) return;
  uint32_t histogram[kBins] = {};
  for (size_t i = 0; i < n; ++i) ++histogram[Magnitude(x + i) >> kShift];
  size_t above = 0;  // elements of higher bins
  size_t bin = kBins - 1;
  while (above + histogram[bin] < k) above += histogram[bin--];

  std::vector<uint32_t> members;
  members.reserve(histogram[bin]);
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = Magnitude(x + i);
    if (magnitude >> kShift == bin) members.push_back(magnitude);
  }
  const auto kth = members.begin() + (k - above - 1);
  std::nth_element(members.begin(), kth, members.end(), std::greater<uint32_t>());
  const uint32_t threshold = *kth;
  // Those before the k-th that equal it are taken too, the ones with the lowest index.
  size_t equal = k - above - std::count_if(members.begin(), kth, [threshold](uint32_t member) {
                   return member > threshold;
                 });
  for (size_t i = 0; i < n; ++i) {
    const uint32_t magnitude = Magnitude(x + i);
    if (magnitude < threshold) continue;
    if (magnitude == threshold) {
      if (equal == 0) continue;
      --equal;
    }
    *out++ = static_cast<uint32_t>(i);
  }
}

namespace {

constexpr int64_t kShortIndices = int64_t{1} << 16;
constexpr size_t kBlock = 1024;  // elements converted at a time: they stay in the L1 cache

int64_t IndexBytes(const ChunkForm& form) { return form.elements <= kShortIndices ? 2 : 4; }

void PutIndex(uint32_t index, int64_t bytes, char* out) {
  const uint16_t narrow = static_cast<uint16_t>(index);
  if (bytes == 2) {
    std::memcpy(out, &narrow, 2);
  } else {
    std::memcpy(out, &index, 4);
  }
}

uint32_t GetIndex(const char* from, int64_t bytes) {
  uint16_t narrow = 0;
  uint32_t index = 0;
  if (bytes == 4) {
    std::memcpy(&index, from, 4);
    return index;
  }
  std::memcpy(&narrow, from, 2);
  return narrow;
}

void ToHalves(ChunkForm::Kind kind, Overflow overflow, uint16_t* out, const float* x, size_t n) {
  if (kind == ChunkForm::Kind::kBf16) {
    FloatToBfloat16(out, x, n);
  } else if (overflow == Overflow::kSaturates) {
    FloatToSaturatedHalf(out, x, n);
  } else {
    FloatToHalf(out, x, n);
  }
}

void FromHalves(ChunkForm::Kind kind, float* out, const uint16_t* x, size_t n) {
  if (kind == ChunkForm::Kind::kFp16) {
    HalfToFloat(out, x, n);
  } else {
    Bfloat16ToFloat(out, x, n);
  }
}

void EncodeHalves(const ChunkForm& form, const float* values, char* out, Overflow overflow) {
  uint16_t block[kBlock];  // `out` may have any alignment
  const size_t n = static_cast<size_t>(form.elements);
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    ToHalves(form.kind, overflow, block, values + at, count);
    std::memcpy(out + 2 * at, block, 2 * count);
  }
}

void EncodeEntries(const ChunkForm& form, const float* values, char* out) {
  std::vector<uint32_t> indices(form.entries);
  SelectLargest(values, form.elements, form.entries, indices.data());
  const int64_t index_bytes = IndexBytes(form);
  for (uint32_t index : indices) {
    const float value = values[index] + 0.0f;  // -0 becomes 0
    PutIndex(index, index_bytes, out);
    std::memcpy(out + index_bytes, &value, sizeof(value));
    out += index_bytes + sizeof(value);
  }
}

}  // namespace

int64_t ChunkForm::unit_bytes() const {
  switch (kind) {
    case Kind::kFp32:
      return 4;
    case Kind::kSparse:
      return 4 + IndexBytes(*this);
    default:
      return 2;
  }
}

void EncodeChunk(const ChunkForm& form, const float* values, char* out, Overflow overflow) {
  if (form.elements == 0) return;
  switch (form.kind) {
    case ChunkForm::Kind::kFp32:
      std::memcpy(out, values, form.bytes());
      return;
    case ChunkForm::Kind::kSparse:
      return EncodeEntries(form, values, out);
    default:
      return EncodeHalves(form, values, out, overflow);
  }
}

void ForgetEncoded(const ChunkForm& form, const char* encoded, float* values) {
  if (form.kind != ChunkForm::Kind::kSparse) {
    std::fill_n(values, form.elements, 0.0f);
    return;
  }
  for (int64_t i = 0; i < form.entries; ++i) {
    values[GetIndex(encoded + i * form.unit_bytes(), IndexBytes(form))] = 0;
  }
}

void RoundChunk(ChunkForm::Kind kind, float* values, size_t n) {
  if (kind == ChunkForm::Kind::kFp32) return;
  if (kind == ChunkForm::Kind::kSparse) {
    for (size_t i = 0; i < n; ++i) values[i] = values[i] + 0.0f;
    return;
  }
  uint16_t block[kBlock];
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = std::min(kBlock, n - at);
    ToHalves(kind, Overflow::kSaturates, block, values + at, count);
    FromHalves(kind, values + at, block, count);
  }
}

ChunkDecoder::ChunkDecoder(const ChunkForm& form, Mode mode, float* out, float a, float b)
    : form_(form),
      mode_(mode),
      out_(out),
      a_(a),
      b_(b),
      unit_(static_cast<size_t>(form.unit_bytes())),
      size_(static_cast<size_t>(form.bytes())) {
  if (form.kind == ChunkForm::Kind::kSparse && mode == Mode::kCopy) {
    std::fill_n(out, form.elements, 0.0f);
  }
}

absl::Status ChunkDecoder::Consume(absl::string_view bytes) {
  if (bytes.size() > size_ - consumed_) {
    return absl::DataLossError(absl::StrCat("payload received: expected ", size_, " bytes, found ",
                                            consumed_ + bytes.size(), " or more"));
  }
  const size_t waiting = consumed_ % unit_;
  if (waiting > 0) {
    const size_t taken = std::min(unit_ - waiting, bytes.size());
    if (taken > 0) std::memcpy(split_ + waiting, bytes.data(), taken);
    // consumed_ still points into the unit that this completes.
    if (waiting + taken == unit_) GS_RETURN_IF_ERROR(Take(split_, 1));
    consumed_ += taken;
    bytes.remove_prefix(taken);
  }
  const size_t whole = bytes.size() / unit_;
  GS_RETURN_IF_ERROR(Take(bytes.data(), whole));
  const size_t rest = bytes.size() % unit_;
  if (rest > 0) std::memcpy(split_, bytes.data() + whole * unit_, rest);
  consumed_ += bytes.size();
  return absl::OkStatus();
}

absl::Status ChunkDecoder::Finish() {
  if (consumed_ != size_) {
    return absl::DataLossError(
        absl::StrCat("payload received: expected ", size_, " bytes, found ", consumed_));
  }
  // Elements that did not arrive are scaled, too.
  if (form_.kind == ChunkForm::Kind::kSparse && mode_ == Mode::kAddAndScale) {
    ScaleTwice(out_, static_cast<size_t>(form_.elements), a_, b_);
  }
  return absl::OkStatus();
}

absl::Status ChunkDecoder::Take(const char* bytes, size_t units) {
  if (units == 0) return absl::OkStatus();
  if (form_.kind == ChunkForm::Kind::kSparse) return TakeEntries(bytes, units);
  if (form_.kind != ChunkForm::Kind::kFp32) {
    TakeHalves(bytes, units);
  } else if (mode_ == Mode::kAdd) {
    AddUnaligned(out_ + consumed_ / unit_, bytes, units);
  } else if (mode_ == Mode::kAddAndScale) {
    AddScaleTwice(out_ + consumed_ / unit_, bytes, units, a_, b_);
  } else {
    Copy(out_ + consumed_ / unit_, bytes, units);
  }
  return absl::OkStatus();
}

void ChunkDecoder::TakeHalves(const char* bytes, size_t units) {
  uint16_t halves[kBlock];  // `bytes` may have any alignment
  float floats[kBlock];
  float* const to = out_ + consumed_ / unit_;
  for (size_t at = 0; at < units; at += kBlock) {
    const size_t count = std::min(kBlock, units - at);
    std::memcpy(halves, bytes + 2 * at, 2 * count);
    if (mode_ == Mode::kCopy) {
      FromHalves(form_.kind, to + at, halves, count);
    } else {
      FromHalves(form_.kind, floats, halves, count);
      if (mode_ == Mode::kAdd) {
        Add(to + at, floats, count);
      } else {
        AddScaleTwice(to + at, floats, count, a_, b_);
      }
    }
  }
}

absl::Status ChunkDecoder::TakeEntries(const char* bytes, size_t units) {
  const int64_t index_bytes = IndexBytes(form_);
  for (size_t i = 0; i < units; ++i) {
    const char* const entry = bytes + i * unit_;
    const int64_t index = GetIndex(entry, index_bytes);
    if (index <= last_index_ || index >= form_.elements) {
      return absl::DataLossError(absl::StrCat("payload received: expected an index above ",
                                              last_index_, " and below ", form_.elements,
                                              ", found ", index));
    }
    last_index_ = index;
    float value;
    std::memcpy(&value, entry + index_bytes, sizeof(value));
    out_[index] = mode_ == Mode::kCopy ? value : out_[index] + value;
  }
  return absl::OkStatus();
}

}  // namespace gradsync
