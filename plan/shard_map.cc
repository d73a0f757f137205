#include "plan/shard_map.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::StatusOr<ShardMap> ShardMap::Create(const Plan& plan, const std::vector<double>& weights) {
  if (weights.empty()) {
    return absl::InvalidArgumentError("shard map: expected at least one server, found none");
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0) || !std::isfinite(weights[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight of server ", i, ": expected a positive number, found ", weights[i]));
    }
  }
  ShardMap map;
  map.bytes_.assign(weights.size(), 0);
  for (const BucketPlan& bucket : plan.buckets()) {
    std::vector<int>& owners = map.owners_.emplace_back();
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const int64_t bytes = 4 * bucket.layout.range(slot).size();
      // The server that would be least loaded for its weight with this chunk; the first of equals.
      size_t best = 0;
      for (size_t i = 1; i < weights.size(); ++i) {
        const double load = static_cast<double>(map.bytes_[i] + bytes) / weights[i];
        const double best_load = static_cast<double>(map.bytes_[best] + bytes) / weights[best];
        if (load < best_load) best = i;
      }
      owners.push_back(static_cast<int>(best));
      map.bytes_[best] += bytes;
    }
  }
  return map;
}

std::vector<ChunkId> PushOrder(const Plan& plan, const ShardMap& shards, int server, int rank) {
  std::vector<ChunkId> order;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
      for (int position = 0; position < layout.world_size(); ++position) {
        const ChunkId id{b, layout.slot(stripe, SendChunk(rank, position, layout.world_size()))};
        if (shards.server(id) == server && !layout.range(id.slot).empty()) {
          order.push_back(id);
        }
      }
    }
  }
  return order;
}

}  // namespace gradsync
