#include "core/plan/codec.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace gradsync {
namespace {

int64_t SentElements(Codec codec, int64_t elements) {
  const double k = std::ceil(codec.ratio * static_cast<double>(elements));
  return std::min(elements, std::max<int64_t>(1, static_cast<int64_t>(k)));
}

ChunkForm SparseUnlessLarger(int64_t elements, int64_t entries) {
  const ChunkForm sparse = {ChunkForm::Kind::kSparse, elements, entries};
  const ChunkForm whole = {ChunkForm::Kind::kFp32, elements, 0};
  return sparse.bytes() < whole.bytes() ? sparse : whole;
}

ChunkForm::Kind DenseKind(Codec codec) {
  switch (codec.kind) {
    case Codec::Kind::kFp16:
      return ChunkForm::Kind::kFp16;
    case Codec::Kind::kBf16:
      return ChunkForm::Kind::kBf16;
    default:
      return ChunkForm::Kind::kFp32;
  }
}

}  // namespace

std::string CodecName(Codec codec) {
  switch (codec.kind) {
    case Codec::Kind::kNone:
      return "none";
    case Codec::Kind::kFp16:
      return "fp16";
    case Codec::Kind::kBf16:
      return "bf16";
    case Codec::Kind::kTopK:
      break;
  }
  // Few digits where they are enough to tell the ratio from all others.
  const std::string brief = absl::StrFormat("topk:%g", codec.ratio);
  const absl::StatusOr<Codec> again = ParseCodec(brief);
  return again.ok() && *again == codec ? brief : absl::StrFormat("topk:%.17g", codec.ratio);
}

absl::StatusOr<Codec> ParseCodec(absl::string_view text) {
  if (text.empty() || text == "none") return Codec();
  if (text == "fp16") return Codec{Codec::Kind::kFp16, 0};
  if (text == "bf16") return Codec{Codec::Kind::kBf16, 0};
  Codec codec = {Codec::Kind::kTopK, 0};
  absl::string_view ratio = text;
  if (absl::ConsumePrefix(&ratio, "topk:") && absl::SimpleAtod(ratio, &codec.ratio) &&
      codec.ratio > 0 && codec.ratio <= 1) {
    return codec;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected none, fp16, bf16 or topk:R with 0 < R <= 1, found \"", text, "\""));
}

ChunkForm GradientForm(Codec codec, int64_t elements) {
  if (!codec.sparse()) return {DenseKind(codec), elements, 0};
  return SparseUnlessLarger(elements, SentElements(codec, elements));
}

ChunkForm ReturnedForm(Codec codec, int64_t elements, int world_size, Returned returned) {
  if (returned == Returned::kParameters) return {ChunkForm::Kind::kFp32, elements, 0};
  if (!codec.sparse()) return {DenseKind(codec), elements, 0};
  return SparseUnlessLarger(elements,
                            std::min(elements, world_size * SentElements(codec, elements)));
}

void RoundMean(Codec codec, float* values, int64_t n) {
  RoundChunk(codec.sparse() ? ChunkForm::Kind::kSparse : DenseKind(codec), values,
             static_cast<size_t>(n));
}

absl::Status CheckUncompressed(Codec codec, absl::string_view reason) {
  if (!codec.compresses()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("compression: expected none, found ", CodecName(codec), "; ", reason));
}

}  // namespace gradsync
