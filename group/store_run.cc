#include "group/store_run.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

// Keys of a run have a slash, so this is nobody's, and no failure of a run ends its waits.
constexpr absl::string_view kKey = "run";

}  // namespace

absl::Status PublishRun(KeyValueStore& store, const StoreRun& run, Deadline deadline) {
  return store.Set(kKey, absl::StrCat(run.attempt, " ", run.run_id), deadline);
}

absl::StatusOr<StoreRun> AskForRun(KeyValueStore& store, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::string text, store.Get(kKey, deadline));
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
  StoreRun run;
  run.run_id = parts.second;
  if (!absl::SimpleAtoi(parts.first, &run.attempt) || run.run_id.empty()) {
    return absl::DataLossError(
        absl::StrCat("store: expected a run's attempt and id, found \"", text, "\""));
  }
  return run;
}

}  // namespace gradsync
