#include "simulator/fluid.h"

#include "simulator/fluid_ps.h"
#include "simulator/fluid_ring.h"

namespace gradsync {

FluidExchange SimulateFluid(const Plan& plan, const Cluster& cluster,
                            const std::vector<double>& ready, double owner_update) {
  if (!cluster.ring) return SimulateFluidPs(plan, cluster, ready, owner_update);
  if (plan.world_size() > 1) return SimulateFluidRing(plan, cluster, ready, owner_update);
  FluidExchange alone;
  double idle_from = 0;
  for (size_t b = 0; b < ready.size(); ++b) {
    const double share =
        static_cast<double>(plan.buckets()[b].bytes()) / static_cast<double>(plan.total_bytes());
    idle_from = (idle_from > ready[b] ? idle_from : ready[b]) + share * owner_update;
    alone.resolved.push_back(idle_from);
  }
  return alone;
}

}  // namespace gradsync
