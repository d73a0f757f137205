#include "data/text_dataset.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/flag_error.h"
#include "base/regular_file.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

constexpr int64_t kTestShare = 10;  // The test split is one part in so many.

absl::StatusOr<std::string> ReadAll(const std::string& path) {
  absl::StatusOr<std::string> bytes = ReadRegularFile(path);
  if (absl::IsNotFound(bytes.status())) {
    return absl::NotFoundError(absl::StrCat("text file ", path, " does not exist"));
  }
  if (!bytes.ok()) {
    return absl::Status(
        bytes.status().code(),
        absl::StrCat("text file ", path, " cannot be read: ", bytes.status().message()));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TextDataset>> TextDataset::Open(const std::string& path, Split split,
                                                               int64_t context) {
  if (context < 1) return FlagError("gpt_context", "at least 1", absl::StrCat(context));
  GS_ASSIGN_OR_RETURN(const std::string bytes, ReadAll(path));
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
      split == Split::kTrain ? bytes.substr(0, total - test) : bytes.substr(total - test),
      context));
}

int64_t TextDataset::size() const { return (static_cast<int64_t>(bytes_.size()) - 1) / context_; }

void TextDataset::Get(int64_t index, absl::Span<int64_t> inputs,
                      absl::Span<int64_t> targets) const {
  const auto* sequence = reinterpret_cast<const uint8_t*>(bytes_.data()) + index * context_;
  for (int64_t i = 0; i < context_; ++i) {
    inputs[i] = sequence[i];
    targets[i] = sequence[i + 1];
  }
}

}  // namespace gradsync
