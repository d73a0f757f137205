#include "core/plan/step_marks.h"

#include <algorithm>

namespace gradsync {
namespace {

// By bucket, the first and the last of the backward turns in which it gets gradients; -1 without
// units.
struct BackwardTurns {
  std::vector<int> first;
  std::vector<int> last;
};

BackwardTurns BackwardTurnsOf(const Plan& plan, const std::vector<std::vector<int>>& units) {
  BackwardTurns turns;
  turns.first.assign(plan.buckets().size(), -1);
  turns.last = turns.first;
  const int count = static_cast<int>(units.size());
  for (int unit = count - 1; unit >= 0; --unit) {
    for (int bucket : units[unit]) {
      turns.last[bucket] = 2 * count - 1 - unit;
      if (turns.first[bucket] < 0) turns.first[bucket] = turns.last[bucket];
    }
  }
  return turns;
}

}  // namespace

std::vector<StepMark> MarksOfStep(const Plan& plan, const ComputedStep& step) {
  std::vector<StepMark> marks;
  const bool gathers = plan.slots().parameters > 0;
  const int turns = gathers ? static_cast<int>(step.turn_begin.size()) : 0;
  const BackwardTurns needed =
      BackwardTurnsOf(plan, gathers ? step.units : std::vector<std::vector<int>>());
  int turn = 0;
  const auto add = [&marks](StepMark::Kind kind, int number, double at) {
    marks.push_back({kind, number, marks.empty() ? at : std::max(at, marks.back().at)});
  };
  const auto turns_before = [&](double at, int needed_turn) {
    for (; turn < turns && (turn <= needed_turn || step.turn_begin[turn] < at); ++turn) {
      add(StepMark::Kind::kTurn, turn, step.turn_begin[turn]);
    }
  };
  const int slots = plan.slots().gradients;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    const double ready = step.bucket_ready[bucket];
    if (slots > 0 && bucket >= slots) {
      const double begin = step.bucket_begin.empty() ? ready : step.bucket_begin[bucket];
      turns_before(begin, needed.first[bucket]);
      add(StepMark::Kind::kMakeRoom, bucket, begin);
    }
    turns_before(ready, needed.last[bucket]);
    add(StepMark::Kind::kLaunch, bucket, ready);
  }
  return marks;
}

}  // namespace gradsync
