#include "worker/pipeline/split.h"

#include <algorithm>
#include <limits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

StageSplit FromStarts(const std::vector<int>& starts, int blocks) {
  StageSplit split;
  for (size_t s = 0; s < starts.size(); ++s) {
    split.push_back({starts[s], s + 1 < starts.size() ? starts[s + 1] : blocks});
  }
  return split;
}

}  // namespace

absl::StatusOr<StageSplit> ParseSplit(absl::string_view text, int blocks, int stages) {
  std::vector<int> starts = {0};
  bool legal = true;
  if (!text.empty()) {
    for (absl::string_view number : absl::StrSplit(text, ',')) {
      const int before = starts.back();
      int& start = starts.emplace_back();
      legal = legal && absl::SimpleAtoi(number, &start) && start > before && start < blocks;
    }
  }
  if (legal && static_cast<int>(starts.size()) == stages) return FromStarts(starts, blocks);
  return FlagError("split",
                   absl::StrCat("auto, or ", stages - 1, " of the blocks 1 to ", blocks - 1,
                                " in ascending order, before which the stages begin"),
                   text);
}

std::string SplitToString(const StageSplit& split) {
  std::vector<int> starts;
  for (size_t s = 1; s < split.size(); ++s) starts.push_back(split[s].first);
  return absl::StrJoin(starts, ",");
}

absl::StatusOr<StageSplit> BalanceBlocks(const std::vector<double>& times, int stages) {
  const int blocks = static_cast<int>(times.size());
  if (stages > blocks) {
    return absl::InvalidArgumentError(absl::StrCat("--mesh, --model_parallel: expected at most ",
                                                   blocks, " stages for a model of ", blocks,
                                                   " blocks, found ", stages));
  }
  // best[s][b]: the slowest of s + 1 stages that have the blocks from b on; next[s][b]: where the
  // first of them ends.
  const std::vector<double> none(blocks + 1, std::numeric_limits<double>::infinity());
  std::vector<std::vector<double>> best(stages, none);
  std::vector<std::vector<int>> next(stages, std::vector<int>(blocks + 1, blocks));
  for (int b = blocks - 1; b >= 0; --b) {
    best[0][b] = times[b] + (b + 1 < blocks ? best[0][b + 1] : 0);
  }
  for (int s = 1; s < stages; ++s) {
    for (int b = 0; b + s < blocks; ++b) {
      double own = 0;
      for (int end = b + 1; end + s <= blocks; ++end) {
        own += times[end - 1];
        const double slowest = std::max(own, best[s - 1][end]);
        if (slowest >= best[s][b]) continue;
        best[s][b] = slowest;
        next[s][b] = end;
      }
    }
  }
  std::vector<int> starts = {0};
  for (int s = stages - 1; s > 0; --s) starts.push_back(next[s][starts.back()]);
  return FromStarts(starts, blocks);
}

}  // namespace gradsync
