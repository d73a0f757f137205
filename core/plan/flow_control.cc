#include "core/plan/flow_control.h"

#include <algorithm>
#include <cmath>

namespace gradsync {

std::vector<int> PushLeads(const Plan& plan, const ShardMap& shards,
                           const std::vector<int>& streams, int per_stream) {
  std::vector<int> most_of_a_stripe(shards.servers(), 0);
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
      std::vector<int> chunks(shards.servers(), 0);
      for (int chunk = 0; chunk < layout.world_size(); ++chunk) {
        const int slot = layout.slot(stripe, chunk);
        if (layout.range(slot).empty()) continue;
        const int server = shards.server({b, slot});
        most_of_a_stripe[server] = std::max(most_of_a_stripe[server], ++chunks[server]);
      }
    }
  }
  std::vector<int> leads;
  for (int server = 0; server < shards.servers(); ++server) {
    leads.push_back(most_of_a_stripe[server] + per_stream * streams[server]);
  }
  return leads;
}

std::vector<int> StreamsByServer(const std::vector<double>& weights, int connections) {
  constexpr double kMost = 4;
  if (weights.empty()) return {};
  const auto ends = std::minmax_element(weights.begin(), weights.end());
  const double lightest = *ends.first;
  if (*ends.second == lightest) return std::vector<int>(weights.size(), connections);
  std::vector<int> streams;
  for (double weight : weights) {
    streams.push_back(static_cast<int>(std::lround(std::min(kMost, weight / lightest))));
  }
  return streams;
}

}  // namespace gradsync
