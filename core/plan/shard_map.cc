#include "core/plan/shard_map.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gradsync {

namespace {

struct Server {
  int64_t bytes;
  int index;
};

// Servers of one weight. Only the one with the fewest bytes can be the next, whatever the chunk.
struct WeightClass {
  double weight;
  std::vector<Server> heap;  // by LoadedMore
};

bool LoadedMore(const Server& a, const Server& b) {
  return a.bytes != b.bytes ? a.bytes > b.bytes : a.index > b.index;
}

// Finds, for chunk after chunk, the server that would be least loaded for its weight with the chunk; the
// first of equals. Classes are kept in a heap by what their best servers' loads would be with a chunk
// of the size of the last one, and only a chunk of another size orders it anew.
class LeastLoaded {
 public:
  explicit LeastLoaded(const std::vector<double>& weights) {
    std::map<double, std::vector<Server>> by_weight;
    for (size_t i = 0; i < weights.size(); ++i) {
      by_weight[weights[i]].push_back({0, static_cast<int>(i)});  // in order, hence a heap
    }
    for (auto& [weight, servers] : by_weight) classes_.push_back({weight, std::move(servers)});
    for (size_t i = 0; i < classes_.size(); ++i) order_.push_back({0, 0, i});
  }

  // Gives the chunk to that server and returns its index.
  int Take(int64_t bytes) {
    if (bytes != chunk_bytes_) {
      chunk_bytes_ = bytes;
      for (Entry& entry : order_) entry = EntryOf(entry.number);
      std::make_heap(order_.begin(), order_.end(), Later);
    }
    std::pop_heap(order_.begin(), order_.end(), Later);
    std::vector<Server>& heap = classes_[order_.back().number].heap;
    std::pop_heap(heap.begin(), heap.end(), LoadedMore);
    const int server = heap.back().index;
    heap.back().bytes += bytes;
    std::push_heap(heap.begin(), heap.end(), LoadedMore);
    order_.back() = EntryOf(order_.back().number);
    std::push_heap(order_.begin(), order_.end(), Later);
    return server;
  }

 private:
  struct Entry {
    double load;
    int server;
    size_t number;  // of classes_
  };

  static bool Later(const Entry& a, const Entry& b) {
    return a.load != b.load ? a.load > b.load : a.server > b.server;
  }

  Entry EntryOf(size_t number) const {
    const WeightClass& of = classes_[number];
    const Server& best = of.heap.front();
    return {static_cast<double>(best.bytes + chunk_bytes_) / of.weight, best.index, number};
  }

  std::vector<WeightClass> classes_;
  std::vector<Entry> order_;  // a heap
  int64_t chunk_bytes_ = -1;
};

}  // namespace

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
  LeastLoaded servers(weights);
  for (const BucketPlan& bucket : plan.buckets()) {
    std::vector<int>& owners = map.owners_.emplace_back(bucket.layout.slots(), 0);
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const int64_t bytes = 4 * bucket.layout.range(slot).size();
      if (bytes == 0) continue;
      owners[slot] = servers.Take(bytes);
      map.bytes_[owners[slot]] += bytes;
    }
  }
  return map;
}

std::vector<std::vector<ChunkId>> PushOrders(const Plan& plan, const ShardMap& shards, int rank) {
  std::vector<std::vector<ChunkId>> orders(shards.servers());
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
      for (int position = 0; position < layout.world_size(); ++position) {
        const ChunkId id{b, layout.slot(stripe, SendChunk(rank, position, layout.world_size()))};
        if (!layout.range(id.slot).empty()) orders[shards.server(id)].push_back(id);
      }
    }
  }
  return orders;
}

std::vector<ChunkId> PushOrder(const Plan& plan, const ShardMap& shards, int server, int rank) {
  return PushOrders(plan, shards, rank)[server];
}

ServerPushOrder::ServerPushOrder(std::vector<ChunkId> of_rank_0, int world_size)
    : world_size_(world_size), chunks_(std::move(of_rank_0)) {
  for (size_t i = 0; i < chunks_.size(); ++i) {
    const bool begins = i == 0 || chunks_[i].bucket != chunks_[i - 1].bucket ||
                        chunks_[i].slot / world_size != chunks_[i - 1].slot / world_size;
    begins_.push_back(begins ? static_cast<uint32_t>(i) : begins_.back());
  }
}

// Rank 0 goes through the chunks of a stripe from the last one down, rank r from chunk r - 1 down and
// then from the last one.
ChunkId ServerPushOrder::At(int rank, size_t number) const {
  const size_t begin = begins_[number];
  const auto first = chunks_.begin() + begin;
  const auto end = std::upper_bound(begins_.begin() + number, begins_.end(), begins_[number]);
  const size_t count = (end - begins_.begin()) - begin;
  const auto own = std::partition_point(first, first + count,
                                        [&](ChunkId id) { return id.slot % world_size_ >= rank; });
  return first[(number - begin + (own - first)) % count];
}

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
