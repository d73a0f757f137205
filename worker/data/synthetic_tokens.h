#ifndef GRADSYNC_WORKER_DATA_SYNTHETIC_TOKENS_H_
#define GRADSYNC_WORKER_DATA_SYNTHETIC_TOKENS_H_

#include <array>
#include <cstdint>

#include "worker/data/dataset.h"
#include "worker/data/token_dataset.h"

namespace gradsync {

// Tokens computed from a seed, so that a language model can be trained without a file: 20,000
// training and 2,000 test sequences over a vocabulary of 256.
//
// Each token has one that usually follows it, three times in four; else any follows. A model that
// has learned the pairs reaches an accuracy of three in four, and a loss of 1.94 nats instead of
// the 5.55 of a guess. It is far easier than text: use it to see that training works and how fast
// it is, never to compare models.
//
// A sequence is a pure function of (seed, split, index), on integers, so it is the same on every
// machine. Thread-safe.
class SyntheticTokens : public TokenDataset {
 public:
  // `context` of at least 1.
  SyntheticTokens(Split split, int64_t context, uint64_t seed);

  int64_t size() const override;
  int64_t context() const override { return context_; }
  int64_t vocabulary() const override { return kVocabulary; }
  void Get(int64_t index, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const override;
  DataIdentity identity() const override;

 private:
  static constexpr int kVocabulary = 256;

  const Split split_;
  const int64_t context_;
  const uint64_t seed_;
  std::array<uint8_t, kVocabulary> next_;  // a permutation
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_SYNTHETIC_TOKENS_H_
