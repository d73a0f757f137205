// Where the thread that computes a step stops to gather, to wait or to launch.

#ifndef GRADSYNC_CORE_PLAN_STEP_MARKS_H_
#define GRADSYNC_CORE_PLAN_STEP_MARKS_H_

#include <vector>

#include "core/plan/plan.h"

namespace gradsync {

// When in forward and backward what happens, if nothing is waited for; times in any unit, from the
// step's begin.
struct ComputedStep {
  // When each bucket of the plan is complete; never falling.
  std::vector<double> bucket_ready;
  // When the first gradient of each comes, which needs the bucket's memory; empty: with the last.
  // Looked at where the plan has slots of gradients.
  std::vector<double> bucket_begin;
  // The buckets of each unit, and when each turn of TurnsOfStep() begins
  // (core/plan/gather_order.h). Looked at where the plan has slots of parameters.
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

#endif  // GRADSYNC_CORE_PLAN_STEP_MARKS_H_
