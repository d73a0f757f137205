#include "gradsync/join/agree_on_flags.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// A line must stay readable, and short enough for the store's errors, however many ranks differ.
constexpr size_t kMostFlags = 4;
constexpr size_t kMostValues = 4;
constexpr size_t kMostRuns = 8;

// name=value, a line each.
std::string Format(const FlagTexts& flags) {
  std::string text;
  for (const auto& [name, value] : flags) {
    absl::StrAppend(&text, name, "=", absl::CEscape(value), "\n");
  }
  return text;
}

FlagTexts Parse(absl::string_view text) {
  FlagTexts flags;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> flag = absl::StrSplit(line, absl::MaxSplits('=', 1));
    // Stays escaped where that matters: it is printed in one line.
    flags.insert(flag);
  }
  return flags;
}

// "rank 1 has", "ranks 0, 2 to 5 have"; `ranks` increase.
std::string Have(const std::vector<int>& ranks) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    if (end - i < 3) end = i + 1;  // "0, 1" reads better than "0 to 1"
    runs.push_back(end - i == 1 ? absl::StrCat(ranks[i])
                                : absl::StrCat(ranks[i], " to ", ranks[end - 1]));
    i = end;
  }
  if (runs.size() > kMostRuns) {
    runs.resize(kMostRuns);
    runs.push_back("...");
  }
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(runs, ", "),
                      ranks.size() == 1 ? " has" : " have");
}

std::string ValueIn(const FlagTexts& flags, const std::string& name) {
  const auto found = flags.find(name);
  if (found == flags.end()) return "no such flag";
  return found->second.empty() ? "nothing" : found->second;
}

// What the ranks have for a flag, by the first rank that has it; one element where all agree.
std::vector<std::pair<std::string, std::vector<int>>> Opinions(const std::vector<FlagTexts>& ranks,
                                                               const std::string& name) {
  std::vector<std::pair<std::string, std::vector<int>>> opinions;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string value = ValueIn(ranks[rank], name);
    auto it = std::find_if(opinions.begin(), opinions.end(),
                           [&value](const auto& opinion) { return opinion.first == value; });
    if (it == opinions.end()) it = opinions.insert(it, {value, {}});
    it->second.push_back(static_cast<int>(rank));
  }
  return opinions;
}

}  // namespace

absl::Status CompareFlags(const std::vector<FlagTexts>& ranks) {
  std::set<std::string> names;
  for (const FlagTexts& flags : ranks) {
    for (const auto& [name, value] : flags) names.insert(name);
  }
  std::vector<std::string> different;
  size_t others = 0;
  for (const std::string& name : names) {
    const auto opinions = Opinions(ranks, name);
    if (opinions.size() < 2) continue;
    if (different.size() == kMostFlags) {
      ++others;
      continue;
    }
    std::vector<std::string> have;
    for (size_t i = 0; i < std::min(opinions.size(), kMostValues); ++i) {
      have.push_back(absl::StrCat(Have(opinions[i].second), " ", opinions[i].first));
    }
    if (opinions.size() > kMostValues) {
      have.push_back(absl::StrCat("others have ", opinions.size() - kMostValues, " more values"));
    }
    different.push_back(
        absl::StrCat("--", name, ": expected the same on all ranks; ", absl::StrJoin(have, ", ")));
  }
  if (different.empty()) return absl::OkStatus();
  if (others > 0) different.push_back(absl::StrCat("and ", others, " more flags"));
  return absl::FailedPreconditionError(absl::StrJoin(different, "; "));
}

absl::Status AgreeOnFlags(const WorkerGroup& group, const FlagTexts& flags) {
  if (group.world_size == 1) return absl::OkStatus();
  const std::string text = Format(flags);
  const auto exchange = [&group](absl::string_view what, const std::string& value) {
    return group.store->AllGather(group.Key(what), group.rank, group.world_size, value,
                                  Deadline::In(group.timeout));
  };
  // Each rank gets what all ranks gave, so that is short unless there is a difference to explain;
  // every rank comes here twice then.
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> digests, exchange("flags", Sha256Hex(text)));
  if (std::set<std::string>(digests.begin(), digests.end()).size() == 1) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> texts, exchange("flags/texts", text));
  std::vector<FlagTexts> ranks;
  for (const std::string& of_rank : texts) ranks.push_back(Parse(of_rank));
  return CompareFlags(ranks);
}

}  // namespace gradsync
