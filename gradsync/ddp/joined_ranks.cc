#include "gradsync/ddp/joined_ranks.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/group/key_value_store.h"

namespace gradsync {

std::string JoinedRanks::Key(int rank) const {
  return group_.Key(absl::StrCat("joined/", name_, "/", rank));
}

absl::Status JoinedRanks::Publish(int64_t last_step, bool follows, Deadline deadline) {
  return group_.store->Set(Key(group_.rank), absl::StrCat(last_step, " ", follows ? 1 : 0),
                           deadline);
}

absl::StatusOr<bool> JoinedRanks::NobodyDid(int64_t step, Deadline deadline) {
  while (static_cast<int>(joined_.size()) < group_.world_size) {
    const int rank = static_cast<int>(joined_.size());
    // An answer in any case, where a Get() that does not wait could be late. Publish() replaces it.
    GS_ASSIGN_OR_RETURN(const std::string text, group_.store->SetIfAbsent(Key(rank), "", deadline));
    if (text.empty()) return false;
    const std::vector<std::string> words = absl::StrSplit(text, ' ');
    Joined joined;
    int follows = 0;
    if (words.size() != 2 || !absl::SimpleAtoi(words[0], &joined.last_step) ||
        !absl::SimpleAtoi(words[1], &follows)) {
      return absl::DataLossError(absl::StrCat("store: expected the last step of ",
                                              group_.Name(rank), ", found \"", text, "\""));
    }
    if (joined.last_step >= step) return false;
    joined.follows = follows != 0;
    joined_.push_back(joined);
  }
  return true;
}

int JoinedRanks::RankWithMost() const {
  const auto most =
      std::max_element(joined_.begin(), joined_.end(),
                       [](const Joined& a, const Joined& b) { return a.last_step < b.last_step; });
  return static_cast<int>(most - joined_.begin());
}

bool JoinedRanks::AllFollow() const {
  const int64_t most = joined_[RankWithMost()].last_step;
  return std::all_of(joined_.begin(), joined_.end(), [most](const Joined& joined) {
    return joined.follows || joined.last_step == most;
  });
}

}  // namespace gradsync
