#include "worker/data/tokens.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"
#include "core/base/random.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int64_t kTestShare = 10;  // The test split is one part in so many.

absl::StatusOr<MappedFile> Map(const std::string& path) {
  absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(absl::StrCat("text file ", path, " does not exist"));
  }
  if (!file.ok()) {
    return absl::Status(
        file.status().code(),
        absl::StrCat("text file ", path, " cannot be read: ", file.status().message()));
  }
  return file;
}

constexpr uint64_t kPairsPurpose = 0x7061697273;
constexpr uint64_t kTrainPurpose = 0x746f6b656e73;
constexpr uint64_t kTestPurpose = 0x74657374746f6b;

}  // namespace

absl::StatusOr<std::unique_ptr<TextDataset>> TextDataset::Open(const std::string& path, Split split,
                                                               int64_t context) {
  if (context < 1) return FlagError("gpt_context", "at least 1", absl::StrCat(context));
  GS_ASSIGN_OR_RETURN(MappedFile file, Map(path));
  const absl::string_view bytes = file.bytes();
  const int64_t total = static_cast<int64_t>(bytes.size());
  // A sequence's last token needs one that follows it.
  const int64_t least = kTestShare * (context + 1);
  if (total < least) {
    return FlagError("data",
                     absl::StrCat("text of at least ", least, " bytes with --gpt_context=", context,
                                  " (a sequence and one byte in each split)"),
                     absl::StrCat("text:", path, " of ", total, " bytes"));
  }
  const int64_t test = total / kTestShare;
  return std::unique_ptr<TextDataset>(new TextDataset(
      std::move(file),
      split == Split::kTrain ? bytes.substr(0, total - test) : bytes.substr(total - test),
      context));
}

int64_t TextDataset::size() const { return (static_cast<int64_t>(bytes_.size()) - 1) / context_; }

DataIdentity TextDataset::identity() const {
  DataIdentity identity;
  identity.what = absl::StrCat("text of ", file_.bytes().size(), " bytes");
  identity.contents = SampledTag(file_.bytes());
  return identity;
}

void TextDataset::Get(int64_t index, absl::Span<int64_t> inputs,
                      absl::Span<int64_t> targets) const {
  const auto* sequence = reinterpret_cast<const uint8_t*>(bytes_.data()) + index * context_;
  for (int64_t i = 0; i < context_; ++i) {
    inputs[i] = sequence[i];
    targets[i] = sequence[i + 1];
  }
}

SyntheticTokens::SyntheticTokens(Split split, int64_t context, uint64_t seed)
    : split_(split), context_(context), seed_(seed) {
  for (int i = 0; i < kVocabulary; ++i) next_[i] = static_cast<uint8_t>(i);
  RandomStream random(kPairsPurpose, seed);
  for (int i = kVocabulary - 1; i > 0; --i) {
    std::swap(next_[i], next_[random.Below(static_cast<uint64_t>(i) + 1)]);
  }
}

int64_t SyntheticTokens::size() const { return split_ == Split::kTrain ? 20000 : 2000; }

DataIdentity SyntheticTokens::identity() const {
  DataIdentity identity;
  identity.what = absl::StrCat("synthetic of ", size(), " sequences of tokens, seed ", seed_);
  return identity;
}

void SyntheticTokens::Get(int64_t index, absl::Span<int64_t> inputs,
                          absl::Span<int64_t> targets) const {
  RandomStream random(split_ == Split::kTrain ? kTrainPurpose : kTestPurpose, seed_,
                      static_cast<uint64_t>(index));
  int64_t token = static_cast<int64_t>(random.Below(kVocabulary));
  for (int64_t i = 0; i < context_; ++i) {
    inputs[i] = token;
    const uint64_t bits = random.Next();
    const bool usual = bits % 4 != 0;
    token = usual ? next_[token] : static_cast<int64_t>(bits >> 32) % kVocabulary;
    targets[i] = token;
  }
}

bool IsText(absl::string_view spec) { return absl::StartsWith(spec, "text:"); }

absl::StatusOr<std::shared_ptr<const TokenDataset>> OpenTokens(absl::string_view spec, Split split,
                                                               int64_t context, uint64_t seed) {
  if (context < 1) return FlagError("gpt_context", "at least 1", absl::StrCat(context));
  if (spec == "synthetic") return std::make_shared<const SyntheticTokens>(split, context, seed);
  absl::string_view path = spec;
  if (absl::ConsumePrefix(&path, "text:") && !path.empty()) {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<TextDataset> text,
                        TextDataset::Open(std::string(path), split, context));
    return std::shared_ptr<const TokenDataset>(std::move(text));
  }
  return FlagError("data", "tokens, text:FILE or synthetic", spec);
}

}  // namespace gradsync
