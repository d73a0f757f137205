#include "worker/data/open_tokens.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "worker/data/synthetic_tokens.h"
#include "worker/data/text_dataset.h"

namespace gradsync {

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
