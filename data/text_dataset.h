#ifndef GRADSYNC_DATA_TEXT_DATASET_H_
#define GRADSYNC_DATA_TEXT_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "data/dataset.h"
#include "data/token_dataset.h"

namespace gradsync {

// A file whose bytes are the tokens: any text, in any encoding, has a vocabulary of 256.
//
// The last tenth of the file is the test split and is never trained on. A split is cut into
// sequences of the context length, one behind the other from its start; what is left at its end is
// not used.
// Held in memory. Thread-safe.
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

 private:
  TextDataset(std::string bytes, int64_t context) : bytes_(std::move(bytes)), context_(context) {}

  const std::string bytes_;  // the split's
  const int64_t context_;
};

}  // namespace gradsync

#endif  // GRADSYNC_DATA_TEXT_DATASET_H_
