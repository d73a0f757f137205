// When a step gathers, waits and launches.

#ifndef GRADSYNC_CORE_PLAN_STEP_ORDER_H_
#define GRADSYNC_CORE_PLAN_STEP_ORDER_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"

namespace gradsync {

// Which buckets are gathered when, where owners alone keep parameters (BucketSlots::parameters).
//
// A model is a list of *units*, blocks that are computed with in one go. Before a unit computes,
// the buckets that have its parameters are gathered, and with them those of the unit after it,
// which come meanwhile; in forward first unit to last, in backward back again. A bucket is there
// until another one needs its memory, or its own parameters change. What is gathered when follows
// from the plan and the units alone, so all ranks gather alike; the ranks of a job, replays and the
// simulator ask here.

// The buckets of each unit, ascending, of units given by their trainable parameters. Errors:
// INVALID_ARGUMENT when a parameter of the plan is in no unit or in two, or a unit's is not in the
// plan.
absl::StatusOr<std::vector<std::vector<int>>> UnitBuckets(
    const Plan& plan, const std::vector<std::vector<std::string>>& units);

// The fewest slots of parameters with which the buckets of a unit, and those of the one before or
// after it, all have memory of their own (SlotOf()).
int ParameterSlotsFor(const std::vector<std::vector<int>>& units);

// A unit that computes, and the one whose parameters come meanwhile (-1: none).
struct UnitTurn {
  int unit = 0;
  int next = -1;
};

// The turns of `unit` in a model of so many.
constexpr UnitTurn ForwardTurn(int unit, int units) {
  // The last unit's parameters are still there when backward begins with it.
  return {unit, unit + 1 < units ? unit + 1 : -1};
}
constexpr UnitTurn BackwardTurn(int unit) { return {unit, unit - 1}; }

// The turns of a step: all forward ones, then all backward ones.
std::vector<UnitTurn> TurnsOfStep(int units);

// What is there, and so what has to be gathered. A value; not thread-safe.
class GatherOrder {
 public:
  // Of a plan with so many buckets that share `slots`.
  GatherOrder(int buckets, int slots) : slots_(slots), here_(buckets, false) {}

  // The buckets to gather for a turn, in order; they count as there from here on. Those of no other
  // unit are used any more.
  std::vector<int> Take(const std::vector<std::vector<int>>& units, UnitTurn turn);

  // The same of one bucket: whether to gather it.
  bool TakeBucket(int bucket);

  // The bucket's parameters change at their owners. Its memory keeps the old ones until it is
  // gathered again.
  void Forget(int bucket) { here_[bucket] = false; }

 private:
  int slots_;
  std::vector<bool> here_;  // by bucket
};

// Every gather of a step, in order; `units` are buckets, and the plan has slots of parameters. A
// step begins with nothing there, since each bucket is launched in the one before.
std::vector<int> GathersOfStep(const Plan& plan, const std::vector<std::vector<int>>& units);

// Where the thread that computes a step stops to gather, to wait or to launch.

// When in forward and backward what happens, if nothing is waited for; times in any unit, from the
// step's begin.
struct ComputedStep {
  // When each bucket of the plan is complete; never falling.
  std::vector<double> bucket_ready;
  // When the first gradient of each comes, which needs the bucket's memory; empty: with the last.
  // Looked at where the plan has slots of gradients.
  std::vector<double> bucket_begin;
  // The buckets of each unit, and when each turn of TurnsOfStep() begins. Looked at
  // where the plan has slots of parameters.
  std::vector<std::vector<int>> units;
  std::vector<double> turn_begin;
};

struct StepMark {
  enum class Kind {
    kTurn,      // of a unit: needs its parameters
    kMakeRoom,  // a bucket's first gradient: needs the memory of bucket - slots.gradients
    kLaunch,    // a bucket is complete
  };
  Kind kind = Kind::kLaunch;
  int number = 0;  // of the turn, or the bucket
  double at = 0;   // never falling; what was waited for before it comes on top
};

// The marks of a step, in order. A bucket gets gradients after the turns of its units have begun
// and is launched before the next turn, also where times are equal. The last mark is a launch:
// turns after it are of units without parameters. Pure; `step` fits the plan.
std::vector<StepMark> MarksOfStep(const Plan& plan, const ComputedStep& step);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_STEP_ORDER_H_
