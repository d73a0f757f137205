#ifndef GRADSYNC_SIMULATOR_FLUID_RING_H_
#define GRADSYNC_SIMULATOR_FLUID_RING_H_

#include "simulator/fluid.h"

namespace gradsync {

// The ring's part of SimulateFluid(), for at least two workers.
FluidExchange SimulateFluidRing(const Plan& plan, const Cluster& cluster,
                                const std::vector<double>& ready, double owner_update);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_FLUID_RING_H_
