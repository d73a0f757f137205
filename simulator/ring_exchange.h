// The ring of allreduce/ring_engine.h without bytes: who sends what when.

#ifndef GRADSYNC_SIMULATOR_RING_EXCHANGE_H_
#define GRADSYNC_SIMULATOR_RING_EXCHANGE_H_

#include <deque>
#include <vector>

#include "simulator/event_queue.h"
#include "simulator/exchange.h"

namespace gradsync {

// The hops are those of core/plan/ring_schedule.h, the rules of flow those of
// allreduce/ring_tokens.h:
// at most `ring_lead` tokens that a rank initiated are under way, one of them until its finished
// chunk comes by; others' tokens overtake those that begin here; a sum for a bucket that is not
// launched here yet is held. Adding and copying take no time.
//
// Where owners alone keep parameters (allreduce/ring_gather.h) a token is over for its owner with
// the update, for its initiator with a notice of that, and for all others when the next rank has
// it. Chunks of a gather overtake sums, and those of one that is not begun here yet are held.
class RingExchange : public SimulatedExchange {
 public:
  // `owner_update`: seconds of updating all parameters, under update at the owner.
  // `queue` must outlive this.
  RingExchange(const Plan& plan, const Cluster& cluster, double owner_update, EventQueue* queue,
               ExchangePlace place, Resolved resolved);

  void Launch(int rank, int step, int bucket) override;
  void Gather(int rank, int bucket) override;
  void ObserveUpdates(UpdateObserver updates) override;

 private:
  enum Kind { kReduce, kGather, kCredit, kShard };
  struct Gathering {  // of a bucket
    int number = 0;   // of the last gather that began
    int open = 0;     // chunks to come, and chunks that the next rank has not got
    std::vector<SimulatedMessage> held;  // of the next one
  };
  struct Rank {
    std::vector<int> step;  // by bucket: last launched
    std::vector<int> open;  // by bucket: chunks without a result
    std::deque<int> own;    // chunks to initiate
    int under_way = 0;
    std::vector<SimulatedMessage> held;
    std::vector<Gathering> gathers;  // by bucket
  };

  void OnExchanged(const SimulatedMessage& message) override;
  void InitiateOwn(int rank);
  void Send(Kind kind, int rank, int chunk, bool urgent);
  void Fold(int rank, int chunk);
  void PassOnFinal(int rank, int chunk);
  void OnSumReceived(int sender, int chunk);
  void OnCredit(int rank, int chunk);
  void EndToken(int rank, int chunk);
  void OnShard(const SimulatedMessage& message);
  void SendShard(int rank, int chunk);
  void CloseShard(int rank, int bucket);

  const int lead_;
  const int connections_;
  OwnerWork owner_work_;
  std::vector<Rank> ranks_;
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_RING_EXCHANGE_H_
