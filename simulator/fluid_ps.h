#ifndef GRADSYNC_SIMULATOR_FLUID_PS_H_
#define GRADSYNC_SIMULATOR_FLUID_PS_H_

#include "simulator/fluid.h"

namespace gradsync {

// The parameter servers' part of SimulateFluid().
FluidExchange SimulateFluidPs(const Plan& plan, const Cluster& cluster,
                              const std::vector<double>& ready, double owner_update);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_FLUID_PS_H_
