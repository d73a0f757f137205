// What a record says of NCCL besides what it chose.

#ifndef GRADSYNC_GRADSYNC_JOIN_NCCL_SETTINGS_H_
#define GRADSYNC_GRADSYNC_JOIN_NCCL_SETTINGS_H_

#include <functional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

// How NCCL is told by its environment to carry out collectives: "NCCL_ALGO=Ring NCCL_PROTO=Simple",
// or less. `lookup` returns the value of a variable, if it is set.
std::string NcclSettings(
    const std::function<absl::optional<std::string>(absl::string_view name)>& lookup);

// NcclApi::version(), as people write it: "2.28.9"; empty for 0.
std::string NcclVersionName(int version);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_NCCL_SETTINGS_H_
