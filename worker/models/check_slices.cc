#include "worker/models/check_slices.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "worker/models/model_table.h"

namespace gradsync {

absl::Status CheckSlices(const ModelOptions& options, int slices, bool split_sequence) {
  const std::string multiple = absl::StrCat("a multiple of tensor=", slices, " (--mesh)");
  const ModelEntry* const entry = FindModel(options.name);
  if (entry == nullptr || entry->family != ModelFamily::kGpt) {
    return FlagError("model", absl::StrCat("gpt with tensor=", slices, " (--mesh)"), options.name);
  }
  if (options.gpt_heads % slices != 0) {
    return FlagError("gpt_heads", multiple, absl::StrCat(options.gpt_heads));
  }
  if (options.classes % slices != 0) {
    return FlagError("data", absl::StrCat("a vocabulary of ", multiple),
                     absl::StrCat(options.classes, " tokens"));
  }
  if (split_sequence && options.gpt_context % slices != 0) {
    return FlagError("gpt_context", absl::StrCat(multiple, " with --sequence_parallel"),
                     absl::StrCat(options.gpt_context));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
