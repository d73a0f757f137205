#ifndef GRADSYNC_SIMULATOR_STRIPE_TABLE_H_
#define GRADSYNC_SIMULATOR_STRIPE_TABLE_H_

#include <vector>

#include "core/plan/plan.h"

namespace gradsync {

// A stripe of a plan, all its chunks together.
struct StripeTotals {
  int bucket = 0;
  int chunks = 0;             // that are not empty
  double gradient_bytes = 0;  // payload towards the owners
  double returned_bytes = 0;  // and back
  double share = 0;           // of the plan's elements
};

// All stripes in the order in which they are sent. Pure.
std::vector<StripeTotals> StripesOf(const Plan& plan, Returned returned);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_STRIPE_TABLE_H_
