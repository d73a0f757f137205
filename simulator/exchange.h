// Exchanges as the simulator has them: what both topologies have in common, and the one of a
// cluster.

#ifndef GRADSYNC_SIMULATOR_EXCHANGE_H_
#define GRADSYNC_SIMULATOR_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "simulator/cluster.h"
#include "simulator/event_queue.h"
#include "simulator/network.h"

namespace gradsync {

// Sizes of a plan's chunks, by their number in the plan: all slots of all buckets, in order.
// Nothing is returned where owners alone keep parameters.
class ChunkTable {
 public:
  ChunkTable(const Plan& plan, Returned returned);

  int count() const { return static_cast<int>(gradient_bytes_.size()); }
  int number(int bucket, int slot) const { return first_[bucket] + slot; }
  ChunkId id(int number) const;

  // Payloads there and back; 0 for an empty chunk.
  int64_t gradient_bytes(int number) const { return gradient_bytes_[number]; }
  int64_t returned_bytes(int number) const { return returned_bytes_[number]; }
  int64_t parameter_bytes(int number) const { return parameter_bytes_[number]; }
  // What part of the plan's elements it has.
  double share(int number) const { return shares_[number]; }

 private:
  std::vector<int> first_;  // by bucket
  std::vector<int64_t> gradient_bytes_;
  std::vector<int64_t> returned_bytes_;
  std::vector<int64_t> parameter_bytes_;
  std::vector<double> shares_;
};

// What the network of a cluster costs.
SimulatedNetwork::Options NetworkOptions(const Cluster& cluster);

// Where an exchange takes place: a network that may carry other messages too.
struct ExchangePlace {
  SimulatedNetwork* network = nullptr;  // must outlive the exchange
  // The network's number of each process of the exchange: ranks first, then servers, as
  // core/plan/wire_traffic.h numbers them.
  std::vector<int> processes;
};

// The only exchange of a network whose processes are its own.
ExchangePlace WholeNetwork(SimulatedNetwork* network);

// All ranks' exchanges of a plan, chunk by chunk. Not thread-safe; nothing blocks. Messages are
// those of the network, so the observer of a shared one sees others' too, and its numbers of
// processes.
class SimulatedExchange : private MessageReceiver {
 public:
  using Resolved = std::function<void(int rank, int bucket)>;

  // `bucket` of `step` is complete on `rank`, which launches its buckets in index order and each
  // once a step. `resolved` is told when the result is there, possibly before this returns.
  virtual void Launch(int rank, int step, int bucket) = 0;

  // Where owners alone keep parameters (BucketSlots): `rank` gathers the bucket, as
  // GradientSync::Gather() has it. `gathered`, which is set before, is told when they are there.
  virtual void Gather(int rank, int bucket) = 0;
  void WhenGathered(Resolved gathered) { gathered_ = std::move(gathered); }

  // Told of updates, from before the first launch on; may be null. Owners are ranks in a ring, else
  // servers.
  using UpdateObserver = std::function<void(int owner, ChunkId chunk, double begin, double end)>;
  virtual void ObserveUpdates(UpdateObserver updates) = 0;

  // The most by which an answered clock was ahead of the slowest; 0 under bsp.
  virtual int64_t max_staleness() const { return 0; }

 protected:
  SimulatedExchange(const Plan& plan, const Cluster& cluster, ExchangePlace place,
                    Resolved resolved);

  // Processes are numbered as in the exchange.
  void SendMessage(SimulatedMessage message);
  virtual void OnExchanged(const SimulatedMessage& message) = 0;

  const Plan plan_;
  const int world_size_;
  const bool keeps_parameters_;  // owners alone: nothing is returned
  const ChunkTable chunks_;
  const Resolved resolved_;
  Resolved gathered_;

 private:
  void OnMessage(const SimulatedMessage& message) override;

  const ExchangePlace place_;
  std::vector<int> numbers_;  // by process of the network: the exchange's
};

// Processes that update parameters, each one chunk after another. Not thread-safe; nothing blocks.
class OwnerWork : private EventHandler {
 public:
  // `seconds`: of updating all parameters. `done(chunk)` is told when a chunk has been updated.
  OwnerWork(int owners, double seconds, EventQueue* queue, std::function<void(int)> done)
      : seconds_(seconds), queue_(queue), done_(std::move(done)), idle_from_(owners, 0) {}

  // Told of each update, when it is known; may be null. Seconds.
  using Observer = std::function<void(int owner, int chunk, double begin, double end)>;
  void Observe(Observer observer) { observer_ = std::move(observer); }

  // `share` is the chunk's part of all parameters. At once if there is nothing to do.
  void Update(int owner, int chunk, double share) {
    if (seconds_ == 0) return done_(chunk);
    double& idle_from = idle_from_[owner];
    const double begin = idle_from > queue_->now() ? idle_from : queue_->now();
    idle_from = begin + share * seconds_;
    if (observer_ != nullptr) observer_(owner, chunk, begin, idle_from);
    queue_->At(idle_from, this, chunk);
  }

 private:
  void OnEvent(int64_t tag) override { done_(static_cast<int>(tag)); }

  const double seconds_;
  EventQueue* const queue_;
  const std::function<void(int)> done_;
  std::vector<double> idle_from_;
  Observer observer_;
};

// The exchange of the cluster's topology. `cluster` has been checked for as many workers as the
// plan has; `owner_update`: seconds of updating all parameters, under update at the owner. `queue`
// must outlive the result. Errors: those of ShardMap::Create().
absl::StatusOr<std::unique_ptr<SimulatedExchange>> MakeExchange(
    const Plan& plan, const Cluster& cluster, double owner_update, EventQueue* queue,
    ExchangePlace place, SimulatedExchange::Resolved resolved);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_EXCHANGE_H_
