#include "core/group/store_run.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// Keys of a run have a slash, so this is nobody's, and no failure of a run ends its waits.
constexpr absl::string_view kKey = "run";

// Of processes that are missing, in a message.
constexpr size_t kMaxNamed = 16;

// "ranks 1, 2 of 3 have not".
std::string Named(absl::string_view what, std::vector<int> numbers, int count) {
  const bool more = numbers.size() > kMaxNamed;
  if (more) numbers.resize(kMaxNamed);
  const bool one = numbers.size() == 1;
  return absl::StrCat(what, one ? " " : "s ", absl::StrJoin(numbers, ", "), more ? ", ..." : "",
                      " of ", count, one ? " has not" : " have not");
}

}  // namespace

absl::Status PublishRun(KeyValueStore& store, const StoreRun& run, Deadline deadline) {
  return store.Set(kKey,
                   absl::StrCat(run.attempt, " ", run.workers, " ", run.servers, " ", run.run_id),
                   deadline);
}

absl::StatusOr<StoreRun> AskForRun(KeyValueStore& store, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::string text, store.Get(kKey, deadline));
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 3));
  StoreRun run;
  if (parts.size() < 4 || !absl::SimpleAtoi(parts[0], &run.attempt) ||
      !absl::SimpleAtoi(parts[1], &run.workers) || !absl::SimpleAtoi(parts[2], &run.servers) ||
      parts[3].empty()) {
    return absl::DataLossError(absl::StrCat(
        "store: expected a run's attempt, workers, servers and id, found \"", text, "\""));
  }
  run.run_id = parts[3];
  return run;
}

std::string CameKey(const StoreRun& run, int rank) {
  return absl::StrCat(run.run_id, "/", run.attempt, "/came/", rank);
}

std::string RegisteredKey(const StoreRun& run, int server) {
  return absl::StrCat(run.run_id, "/", run.attempt, "/server/", server);
}

std::string DescribeMissing(KeyValueStore& store) {
  const Deadline deadline = Deadline::In(absl::Seconds(1));
  const absl::StatusOr<StoreRun> run = AskForRun(store, deadline);
  if (!run.ok()) return "";
  const auto missing = [&](int first, int count, std::string (*key)(const StoreRun&, int)) {
    std::vector<int> numbers;
    for (int i = first; i < count && numbers.size() <= kMaxNamed && !deadline.passed(); ++i) {
      const absl::Status there = store.Get(key(*run, i), Deadline::Now()).status();
      if (absl::IsDeadlineExceeded(there)) numbers.push_back(i);
    }
    return numbers;
  };
  const std::vector<int> ranks = missing(1, run->workers, CameKey);
  const std::vector<int> servers = missing(0, run->servers, RegisteredKey);
  std::vector<std::string> sentences;
  if (!ranks.empty()) {
    sentences.push_back(
        absl::StrCat(Named("rank", ranks, run->workers), " come to rank 0's store"));
  }
  if (!servers.empty()) {
    sentences.push_back(
        absl::StrCat(Named("server", servers, run->servers), " registered in rank 0's store"));
  }
  return absl::StrJoin(sentences, ", ");
}

}  // namespace gradsync
