#include "worker/data/text_dataset.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
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

}  // namespace gradsync
