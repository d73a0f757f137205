// Sequences of tokens of one fixed length, by index: what a language model is trained on. The
// sibling of ImageDataset (worker/data/dataset.h). Start at OpenTokens (worker/data/open_tokens.h).
#ifndef GRADSYNC_WORKER_DATA_TOKEN_DATASET_H_
#define GRADSYNC_WORKER_DATA_TOKEN_DATASET_H_

#include <cstdint>

#include "absl/types/span.h"
#include "worker/data/data_identity.h"

namespace gradsync {

// A dataset is immutable once opened: all methods are thread-safe, need no lock, and give the same
// tokens for the same index every time.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;

  virtual int64_t size() const = 0;        // number of sequences
  virtual int64_t context() const = 0;     // tokens of a sequence
  virtual int64_t vocabulary() const = 0;  // Tokens are in [0, vocabulary()).

  // Writes the sequence at `index`, in [0, size()), to `inputs`, and to `targets` for each of its
  // tokens the one that follows: the same sequence one further. Both have context() elements. Never
  // waits and never fails.
  virtual void Get(int64_t index, absl::Span<int64_t> inputs,
                   absl::Span<int64_t> targets) const = 0;

  // As ImageDataset::identity().
  virtual DataIdentity identity() const { return {}; }
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_TOKEN_DATASET_H_
