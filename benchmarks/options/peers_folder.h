#ifndef GRADSYNC_BENCHMARKS_OPTIONS_PEERS_FOLDER_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_PEERS_FOLDER_H_

#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

// Where tools/setup --peers installs; need not exist. `lookup` returns the value of a variable of
// the environment, if it is set.
inline std::string PeersFolder(
    const std::function<absl::optional<std::string>(absl::string_view name)>& lookup) {
  const std::string cache = lookup("XDG_CACHE_HOME").value_or("");
  return absl::StrCat(cache.empty() ? lookup("HOME").value_or("") + "/.cache" : cache,
                      "/gradsync/peers");
}

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_PEERS_FOLDER_H_
