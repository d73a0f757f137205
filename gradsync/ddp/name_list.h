#ifndef GRADSYNC_GRADSYNC_DDP_NAME_LIST_H_
#define GRADSYNC_GRADSYNC_DDP_NAME_LIST_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace gradsync {

// Names for an error message: the first five, and how many more there are.
inline std::string NameList(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  const size_t shown = std::min(kShown, names.size());
  std::string text = absl::StrJoin(names.begin(), names.begin() + shown, ", ");
  if (names.size() > shown) absl::StrAppend(&text, " and ", names.size() - shown, " more");
  return text;
}

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_NAME_LIST_H_
