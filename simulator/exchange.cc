#include "simulator/exchange.h"

#include <algorithm>
#include <utility>

namespace gradsync {

ChunkTable::ChunkTable(const Plan& plan, Returned returned) {
  const double all = static_cast<double>(plan.total_bytes());
  for (const BucketPlan& bucket : plan.buckets()) {
    first_.push_back(count());
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const int64_t elements = bucket.layout.range(slot).size();
      const bool empty = elements == 0;
      gradient_bytes_.push_back(empty ? 0 : GradientForm(plan.codec(), elements).bytes());
      returned_bytes_.push_back(
          empty ? 0 : ReturnedForm(plan.codec(), elements, plan.world_size(), returned).bytes());
      shares_.push_back(4 * elements / all);
    }
  }
}

ChunkId ChunkTable::id(int number) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), number);
  const int bucket = static_cast<int>(after - first_.begin()) - 1;
  return {bucket, number - first_[bucket]};
}

SimulatedExchange::SimulatedExchange(const Plan& plan, const Cluster& cluster, EventQueue* queue,
                                     Resolved resolved)
    : plan_(plan),
      world_size_(plan.world_size()),
      chunks_(plan, cluster.returned),
      resolved_(std::move(resolved)),
      network_({cluster.rate(), cluster.constants.latency, cluster.constants.seconds_per_message},
               ProcessHosts(cluster, plan.world_size()), queue, this) {}

}  // namespace gradsync
