#include "benchmarks/peer_libraries/fastest_setting.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/records/aggregate.h"

namespace gradsync {
namespace {

constexpr int kTurns = 3;  // of each in a comparison; one more before them, to warm up

// Lets both take turns alternately, tells the times and returns whether the challenger wins. One
// whose turn fails loses; its times are not looked at.
bool Wins(int steps, const std::function<void(absl::string_view)>& progress,
          TrainingContestant* challenger, TrainingContestant* best) {
  const std::string trying = absl::StrCat("trying ", challenger->run().settings());
  std::vector<double> mine;
  std::vector<double> theirs;
  for (int turn = 0; turn <= kTurns; ++turn) {
    const absl::StatusOr<double> held = best->TakeTurn(steps);
    if (!held.ok()) {
      progress(absl::StrCat(trying, ": beside it failed ", held.status().message()));
      return true;
    }
    const absl::StatusOr<double> tried = challenger->TakeTurn(steps);
    if (!tried.ok()) {
      progress(absl::StrCat(trying, ": ", tried.status().message()));
      return false;
    }
    if (turn == 0) continue;
    mine.push_back(*held);
    theirs.push_back(*tried);
  }
  const double held = Percentile(mine, 0.5);
  const double tried = Percentile(theirs, 0.5);
  progress(absl::StrFormat("%s: %.1f ms, beside %.1f ms with %s", trying, tried, held,
                           best->run().settings()));
  return tried < held;
}

}  // namespace

absl::StatusOr<TrainingContestant> StartFastest(
    const PeerTrainingOptions& options, const PyTorchRow& row,
    const std::function<void(absl::string_view)>& progress) {
  std::vector<std::string> all = {row.settings};
  all.insert(all.end(), row.other_settings.begin(), row.other_settings.end());
  absl::StatusOr<TrainingContestant> best;  // until one runs, why the first one does not
  for (size_t i = 0; i < all.size(); ++i) {
    PyTorchRow tried = row;
    tried.settings = all[i];
    absl::StatusOr<TrainingContestant> challenger =
        TrainingContestant::StartPyTorch(options, tried);
    if (!challenger.ok()) {
      progress(absl::StrCat("trying ", row.name, " ", all[i], ": ", challenger.status().message()));
    }
    const bool wins = challenger.ok() &&
                      (!best.ok() || Wins(options.steps_per_round, progress, &*challenger, &*best));
    if (wins || i == 0) best = std::move(challenger);
  }
  if (best.ok() && all.size() > 1) best->AddNote(absl::StrCat("fastest of ", all.size()));
  return best;
}

}  // namespace gradsync
