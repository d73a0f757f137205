// The parameter servers of ps_server/client/ps_engine.h and ps_server/service.h without bytes: who
// sends what when.

#ifndef GRADSYNC_SIMULATOR_PS_EXCHANGE_H_
#define GRADSYNC_SIMULATOR_PS_EXCHANGE_H_

#include <deque>
#include <vector>

#include "core/plan/shard_map.h"
#include "simulator/event_queue.h"
#include "simulator/exchange.h"

namespace gradsync {

// A worker queues a bucket's chunks for each server in PushOrder() and sends while it has credit
// and, under bsp, is no further ahead of the results than PushLeads() allows; chunk number q of a
// pair takes connection q mod C, C as StreamsByServer() has it (core/plan/shard_map.h). A server folds a chunk's contributions in the order of
// core/plan/stripes.h; each folded one is credited, the first together with the second, in messages
// of half of the credit. A complete chunk goes to all workers at once. Adding and copying take no
// time.
//
// Under ssp and asp (docs/use/consistency.md) a contribution is applied when it arrives, which takes
// the server an update of the chunk, and credited then. It is answered when the worker's clock in
// the chunk is no further ahead of the slowest than the bound allows; until then a message tells it
// to push on.
//
// Where servers alone keep parameters, a complete chunk is followed by a notice without payload to
// all workers. A worker that gathers asks each server that has chunks of the bucket for them, and
// they come one after another over the worker's connections in turn.
class PsExchange : public SimulatedExchange {
 public:
  // `shards` is made from `plan` and the cluster's weights. `owner_update`: seconds of updating all
  // parameters, under update at the owner. `queue` must outlive this.
  PsExchange(const Plan& plan, ShardMap shards, const Cluster& cluster, double owner_update,
             EventQueue* queue, ExchangePlace place, Resolved resolved);

  void Launch(int rank, int step, int bucket) override;
  void Gather(int rank, int bucket) override;
  void ObserveUpdates(UpdateObserver updates) override;

  int64_t max_staleness() const override { return max_staleness_; }

 private:
  enum Kind { kPush, kPull, kCredit, kDeferred, kAsk, kShard };
  struct Pair {              // a worker and a server
    std::deque<int> queued;  // chunks
    int credit = 0;
    int lead = 0;     // chunks that may be sent before the next result
    int answers = 0;  // sent to the worker alone
    int number = 0;   // of the next chunk within the step
    int folded = 0;
  };
  struct Chunk {
    int next = 0;               // position of the fold
    std::vector<bool> arrived;  // by position
    // Under ssp and asp, by rank.
    std::vector<int> clocks;     // gradients applied
    std::vector<bool> waiting;   // for the answer
    std::vector<bool> deferred;  // and were told so
  };

  void OnExchanged(const SimulatedMessage& message) override;
  void Pump(int rank, int server);
  void OnAsk(int rank, int server, int bucket);
  void OnPush(int rank, int server, int chunk);
  void OnFolded(int rank, int server);
  void SendResult(int chunk);
  void Applied(int rank, int chunk);
  void SendDeferred(int rank, int server);
  SimulatedMessage PullOf(int chunk, int* sent);  // the number sent so far chooses the stream

  Pair& pair(int rank, int server) { return pairs_[rank * shards_.servers() + server]; }

  const ShardMap shards_;
  const Consistency consistency_;
  const bool urgent_notices_;
  const std::vector<int> connections_;  // of a worker, by server
  const std::vector<int> leads_;        // of a worker, by server
  OwnerWork owner_work_;
  std::vector<Pair> pairs_;
  std::vector<Chunk> folds_;  // by chunk
  int64_t max_staleness_ = 0;
  std::vector<int> results_;                 // by server: sent so far
  std::vector<std::vector<int>> open_;       // by rank, by bucket: chunks without a result
  std::vector<std::vector<int>> gathering_;  // by rank, by bucket: chunks to come
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_PS_EXCHANGE_H_
