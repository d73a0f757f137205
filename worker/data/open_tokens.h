// From the text of a --data flag to sequences of tokens: what OpenDataset
// (worker/data/open_dataset.h) is for images.
#ifndef GRADSYNC_WORKER_DATA_OPEN_TOKENS_H_
#define GRADSYNC_WORKER_DATA_OPEN_TOKENS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"
#include "worker/data/token_dataset.h"

namespace gradsync {

// Whether `spec` is text, whoever reads it.
bool IsText(absl::string_view spec);

// Opens what `spec` names, in sequences of `context` tokens: `text:FILE`
// (worker/data/text_dataset.h), or `synthetic` (worker/data/synthetic_tokens.h, generated from
// `seed`). Blocks while the file is read. The result is immutable and may be shared by threads.
//
// Errors: INVALID_ARGUMENT for another spec, with the ones that exist, or a context below 1; else
// those of TextDataset::Open.
absl::StatusOr<std::shared_ptr<const TokenDataset>> OpenTokens(absl::string_view spec, Split split,
                                                               int64_t context, uint64_t seed = 0);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_OPEN_TOKENS_H_
