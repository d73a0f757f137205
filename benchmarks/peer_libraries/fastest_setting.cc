#include "benchmarks/peer_libraries/fastest_setting.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/optional.h"
#include "benchmarks/records/aggregate.h"

namespace gradsync {
namespace {

constexpr int kTurns = 3;  // of each in a comparison; one more before them, to warm up

class Challenge {
 public:
  Challenge(const PeerTrainingOptions& options, PyTorchRow row,
            const std::function<void(absl::string_view)>& progress)
      : options_(options), row_(std::move(row)), progress_(progress) {}

  void Enter(const std::string& settings) {
    row_.settings = settings;
    absl::StatusOr<TrainingContestant> challenger =
        TrainingContestant::StartPyTorch(options_, row_);
    if (!challenger.ok()) {
      progress_(
          absl::StrCat("trying ", row_.name, " ", settings, ": ", challenger.status().message()));
      if (failure_.ok()) failure_ = challenger.status();
      return;
    }
    if (!best_.has_value()) {
      best_ = *std::move(challenger);
      return;
    }
    Compare(*std::move(challenger));
  }

  absl::StatusOr<TrainingContestant> Winner() && {
    if (!best_.has_value()) return failure_;
    return *std::move(best_);
  }

 private:
  // One whose turn fails loses; its times are not looked at.
  void Compare(TrainingContestant challenger) {
    std::vector<double> mine;
    std::vector<double> theirs;
    absl::Status failed;
    bool best_failed = false;
    for (int turn = 0; turn <= kTurns && failed.ok(); ++turn) {
      const absl::StatusOr<double> held = best_->TakeTurn(options_.steps_per_round);
      const absl::StatusOr<double> tried =
          held.ok() ? challenger.TakeTurn(options_.steps_per_round) : held;
      failed = tried.status();
      best_failed = !held.ok();
      if (turn == 0 || !failed.ok()) continue;
      mine.push_back(*held);
      theirs.push_back(*tried);
    }
    std::string line = absl::StrCat("trying ", challenger.run().settings());
    bool wins = best_failed;
    if (failed.ok()) {
      const double held = Percentile(mine, 0.5);
      const double tried = Percentile(theirs, 0.5);
      wins = tried < held;
      absl::StrAppend(&line, absl::StrFormat(": %.1f ms, beside %.1f ms with ", tried, held),
                      best_->run().settings());
    } else {
      absl::StrAppend(&line, best_failed ? ": beside it failed " : ": ", failed.message());
    }
    progress_(line);
    if (wins) best_ = std::move(challenger);
  }

  const PeerTrainingOptions& options_;
  PyTorchRow row_;
  const std::function<void(absl::string_view)>& progress_;
  absl::optional<TrainingContestant> best_;
  absl::Status failure_;  // the first
};

}  // namespace

absl::StatusOr<TrainingContestant> StartFastest(
    const PeerTrainingOptions& options, const PyTorchRow& row,
    const std::function<void(absl::string_view)>& progress) {
  Challenge challenge(options, row, progress);
  challenge.Enter(row.settings);
  for (const std::string& settings : row.other_settings) challenge.Enter(settings);
  absl::StatusOr<TrainingContestant> winner = std::move(challenge).Winner();
  if (winner.ok() && !row.other_settings.empty()) {
    winner->AddNote(absl::StrCat("fastest of ", 1 + row.other_settings.size()));
  }
  return winner;
}

}  // namespace gradsync
