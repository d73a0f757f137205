#include "worker/data/synthetic_tokens.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"

namespace gradsync {
namespace {

constexpr uint64_t kPairsPurpose = 0x7061697273;
constexpr uint64_t kTrainPurpose = 0x746f6b656e73;
constexpr uint64_t kTestPurpose = 0x74657374746f6b;

}  // namespace

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

}  // namespace gradsync
