#ifndef GRADSYNC_WORKER_DATA_TEXT_DATASET_H_
#define GRADSYNC_WORKER_DATA_TEXT_DATASET_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/regular_file.h"
#include "worker/data/dataset.h"
#include "worker/data/token_dataset.h"

namespace gradsync {

// A file whose bytes are the tokens: any text, in any encoding, has a vocabulary of 256.
//
// The last tenth of the file is the test split and is never trained on. A split is cut into
// sequences of the context length, one behind the other from its start; what is left at its end is
// not used.
// Mapped into memory, so workers of a host and both splits share what the system has read, and what
// is not wanted is not read. The file must not be written to or cut while it is open: bytes that are
// cut off end the process (SIGBUS). Thread-safe.
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

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_TEXT_DATASET_H_
