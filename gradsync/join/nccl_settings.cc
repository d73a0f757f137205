#include "gradsync/join/nccl_settings.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

std::string NcclSettings(
    const std::function<absl::optional<std::string>(absl::string_view name)>& lookup) {
  std::string settings;
  for (const char* variable : {"NCCL_ALGO", "NCCL_PROTO"}) {
    const absl::optional<std::string> value = lookup(variable);
    if (!value.has_value() || value->empty()) continue;
    absl::StrAppend(&settings, settings.empty() ? "" : " ", variable, "=", *value);
  }
  return settings;
}

std::string NcclVersionName(int version) {
  if (version <= 0) return "";
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace gradsync
