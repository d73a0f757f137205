#include "core/plan/step_order.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "core/plan/sharding.h"

namespace gradsync {

absl::StatusOr<std::vector<std::vector<int>>> UnitBuckets(
    const Plan& plan, const std::vector<std::vector<std::string>>& units) {
  absl::flat_hash_map<std::string, int> bucket_of;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
      bucket_of[plan.tensors()[placed.tensor].name] = static_cast<int>(b);
    }
  }
  std::vector<std::vector<int>> buckets;
  for (const std::vector<std::string>& unit : units) {
    std::vector<int>& of_unit = buckets.emplace_back();
    for (const std::string& parameter : unit) {
      const auto found = bucket_of.find(parameter);
      if (found == bucket_of.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("units: expected each trainable parameter in one, found ", parameter,
                         ", which is in two or not trainable"));
      }
      of_unit.push_back(found->second);
      bucket_of.erase(found);
    }
    std::sort(of_unit.begin(), of_unit.end());
    of_unit.erase(std::unique(of_unit.begin(), of_unit.end()), of_unit.end());
  }
  if (bucket_of.empty()) return buckets;
  return absl::InvalidArgumentError(
      absl::StrCat("units: expected each trainable parameter in one, found ",
                   bucket_of.begin()->first, " in none"));
}

// Buckets whose numbers differ by less than the number of slots have different slots.
int ParameterSlotsFor(const std::vector<std::vector<int>>& units) {
  int slots = 1;
  int first = 0;  // of the last unit that has buckets
  int last = -1;
  for (const std::vector<int>& unit : units) {
    if (unit.empty()) continue;
    if (last < 0) {
      first = unit.front();
      last = unit.back();
    }
    slots = std::max(slots, std::max(last, unit.back()) - std::min(first, unit.front()) + 1);
    first = unit.front();
    last = unit.back();
  }
  return slots;
}

std::vector<UnitTurn> TurnsOfStep(int units) {
  std::vector<UnitTurn> turns;
  for (int unit = 0; unit < units; ++unit) turns.push_back(ForwardTurn(unit, units));
  for (int unit = units - 1; unit >= 0; --unit) turns.push_back(BackwardTurn(unit));
  return turns;
}

bool GatherOrder::TakeBucket(int bucket) {
  if (here_[bucket]) return false;
  for (int other = SlotOf(bucket, slots_); other < static_cast<int>(here_.size());
       other += slots_) {
    here_[other] = false;
  }
  here_[bucket] = true;
  return true;
}

std::vector<int> GatherOrder::Take(const std::vector<std::vector<int>>& units, UnitTurn turn) {
  std::vector<int> gathers;
  for (int unit : {turn.unit, turn.next}) {
    if (unit < 0) continue;
    for (int bucket : units[unit]) {
      if (TakeBucket(bucket)) gathers.push_back(bucket);
    }
  }
  return gathers;
}

std::vector<int> GathersOfStep(const Plan& plan, const std::vector<std::vector<int>>& units) {
  GatherOrder order(static_cast<int>(plan.buckets().size()), plan.slots().parameters);
  std::vector<int> gathers;
  for (UnitTurn turn : TurnsOfStep(static_cast<int>(units.size()))) {
    const std::vector<int> some = order.Take(units, turn);
    gathers.insert(gathers.end(), some.begin(), some.end());
  }
  return gathers;
}

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
