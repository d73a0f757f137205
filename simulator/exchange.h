// What both topologies' simulated exchanges have in common.

#ifndef GRADSYNC_SIMULATOR_EXCHANGE_H_
#define GRADSYNC_SIMULATOR_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "plan/shard_map.h"
#include "simulator/cluster.h"
#include "simulator/event_queue.h"
#include "simulator/network.h"

namespace gradsync {

// Sizes of a plan's chunks, by their number in the plan: all slots of all buckets, in order.
class ChunkTable {
 public:
  ChunkTable(const Plan& plan, Returned returned);

  int count() const { return static_cast<int>(gradient_bytes_.size()); }
  int number(int bucket, int slot) const { return first_[bucket] + slot; }
  ChunkId id(int number) const;

  // Payloads there and back; 0 for an empty chunk.
  int64_t gradient_bytes(int number) const { return gradient_bytes_[number]; }
  int64_t returned_bytes(int number) const { return returned_bytes_[number]; }
  // What part of the plan's elements it has.
  double share(int number) const { return shares_[number]; }

 private:
  std::vector<int> first_;  // by bucket
  std::vector<int64_t> gradient_bytes_;
  std::vector<int64_t> returned_bytes_;
  std::vector<double> shares_;
};

// All ranks' exchanges of a job, chunk by chunk. Not thread-safe; nothing blocks.
class SimulatedExchange : protected MessageReceiver {
 public:
  using Resolved = std::function<void(int rank, int bucket)>;

  // `bucket` of `step` is complete on `rank`, which launches its buckets in index order and each
  // once a step. `resolved` is told when the result is there, possibly before this returns.
  virtual void Launch(int rank, int step, int bucket) = 0;

  const SimulatedNetwork& network() const { return network_; }

  // Told of what happens, from before the first launch on; either may be null. Owners are ranks in
  // a ring, else servers.
  using UpdateObserver = std::function<void(int owner, ChunkId chunk, double begin, double end)>;
  virtual void Observe(MessageObserver messages, UpdateObserver updates) = 0;

 protected:
  // `queue` must outlive this.
  SimulatedExchange(const Plan& plan, const Cluster& cluster, EventQueue* queue, Resolved resolved);

  const Plan plan_;
  const int world_size_;
  const ChunkTable chunks_;
  const Resolved resolved_;
  SimulatedNetwork network_;
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_EXCHANGE_H_
