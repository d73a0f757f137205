// Sequences of tokens of one fixed length, by index: what a language model is trained on. The
// sibling of images (worker/data/dataset.h). Start at OpenTokens().

#ifndef GRADSYNC_WORKER_DATA_TOKENS_H_
#define GRADSYNC_WORKER_DATA_TOKENS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/program/regular_file.h"
#include "worker/data/dataset.h"

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

// A file whose bytes are the tokens: any text, in any encoding, has a vocabulary of 256.
//
// The last tenth of the file is the test split and is never trained on. A split is cut into
// sequences of the context length, one behind the other from its start; what is left at its end is
// not used.
// Mapped into memory, so workers of a host and both splits share what the system has read, and what
// is not wanted is not read. The file must not be written to or cut while it is open: bytes that
// are cut off end the process (SIGBUS). Thread-safe.
class TextDataset : public TokenDataset {
 public:
  // Blocks while it reads. Errors:
  //   NOT_FOUND: there is no such file.
  //   INVALID_ARGUMENT: it has too few bytes for a sequence in each split (both flags are named).
  //   PERMISSION_DENIED, UNKNOWN: the system could not open or read it, with its own words.
  static absl::StatusOr<std::unique_ptr<TextDataset>> Open(const std::string& path, Split split,
                                                           int64_t context);

  int64_t size() const override;
  int64_t context() const override { return context_; }
  int64_t vocabulary() const override { return 256; }
  void Get(int64_t index, absl::Span<int64_t> inputs, absl::Span<int64_t> targets) const override;
  // Of the whole file, whichever split this is.
  DataIdentity identity() const override;

 private:
  TextDataset(MappedFile file, absl::string_view split, int64_t context)
      : file_(std::move(file)), bytes_(split), context_(context) {}

  const MappedFile file_;
  const absl::string_view bytes_;  // the split's
  const int64_t context_;
};

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

// Whether `spec` is text, whoever reads it.
bool IsText(absl::string_view spec);

// From the text of a --data flag to sequences of tokens, as OpenDataset()
// (worker/data/open_dataset.h) is for images: opens what `spec` names, in sequences of `context`
// tokens: `text:FILE` (TextDataset), or `synthetic` (SyntheticTokens, generated from `seed`).
// Blocks while the file is read. The result is immutable and may be shared by threads.
//
// Errors: INVALID_ARGUMENT for another spec, with the ones that exist, or a context below 1; else
// those of TextDataset::Open.
absl::StatusOr<std::shared_ptr<const TokenDataset>> OpenTokens(absl::string_view spec, Split split,
                                                               int64_t context, uint64_t seed = 0);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_TOKENS_H_
