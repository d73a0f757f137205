#include "simulator/fluid_ring.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>

#include "simulator/event_queue.h"
#include "simulator/network.h"
#include "simulator/owner_work.h"
#include "simulator/stripe_table.h"

namespace gradsync {
namespace {

// One rank; process 1 is the next rank, which is this one again.
class OneRank : private MessageReceiver, private EventHandler {
 public:
  OneRank(const Plan& plan, const Cluster& cluster, const std::vector<double>& ready,
          double owner_update)
      : world_size_(plan.world_size()),
        lead_(cluster.ring_lead),
        connections_(cluster.ring_connections),
        stripes_(StripesOf(plan, cluster.returned)),
        // An owner has one chunk of each stripe, the n-th part of its share.
        owner_work_(1, owner_update / world_size_, &queue_, [this](int s) { Final(s, 0); }),
        options_{cluster.rate(), cluster.constants.latency, cluster.constants.seconds_per_message},
        network_(options_, {0, 1}, &queue_, this) {
    open_.assign(plan.buckets().size(), 0);
    result_.resolved = ready;
    for (const StripeTotals& stripe : stripes_) ++open_[stripe.bucket];
    for (size_t b = 0; b < ready.size(); ++b) queue_.At(ready[b], this, static_cast<int64_t>(b));
  }

  FluidExchange Run() {
    queue_.Run();
    result_.tx_bytes_max_host = result_.rx_bytes_max_host =
        static_cast<double>(network_.traffic()[0].tx_bytes);
    result_.busy_seconds = network_.BusySeconds(0);
    return std::move(result_);
  }

 private:
  void OnEvent(int64_t bucket) override {
    for (int s = 0; s < static_cast<int>(stripes_.size()); ++s) {
      if (stripes_[s].bucket == bucket) own_.push_back(s);
    }
    InitiateOwn();
  }

  void InitiateOwn() {
    while (under_way_ < lead_ && !own_.empty()) {
      under_way_max_ = std::max(under_way_max_, ++under_way_);
      Send(own_.front(), 1, /*gathers=*/false);
      own_.pop_front();
    }
  }

  void Send(int stripe, int hop, bool gathers) {
    const StripeTotals& totals = stripes_[stripe];
    SimulatedMessage message;
    message.to = 1;
    // Rank 0 sends chunk n - hop in REDUCE, n + 1 - hop in GATHER (core/plan/ring_schedule.h).
    const int64_t chunk = int64_t{world_size_} * (stripe + 1) - hop + (gathers ? 1 : 0);
    message.connection = static_cast<int>(chunk % connections_);
    message.urgent = gathers || hop > 1;
    message.bytes =
        std::llround((gathers ? totals.returned_bytes : totals.gradient_bytes) / world_size_);
    message.kind = gathers ? 1 : 0;
    message.slot = stripe;
    message.count = hop;
    network_.Send(message);
  }

  void OnMessage(const SimulatedMessage& message) override {
    const int hop = message.count;
    if (message.kind == 1) return Final(message.slot, hop);
    if (hop < world_size_ - 1) return Send(message.slot, hop + 1, /*gathers=*/false);
    owner_work_.Update(0, message.slot, stripes_[message.slot].share);
  }

  // The stripe's chunk that has passed `hop` ranks since it was complete is here.
  void Final(int stripe, int hop) {
    if (hop < world_size_ - 1) Send(stripe, hop + 1, /*gathers=*/true);
    if (hop == 1) {
      --under_way_;
      InitiateOwn();
    }
    if (hop < world_size_ - 1) return;
    const int bucket = stripes_[stripe].bucket;
    if (--open_[bucket] == 0) result_.resolved[bucket] = queue_.now() + Drift(stripe);
  }

  // Ranks that are not in step, since some chunks are shorter, leave links idle while a bucket
  // drains: as long as a stripe takes at most, as the closed form has it, and not at all if nothing
  // disturbs them. Half of that.
  double Drift(int stripe) const {
    const double bytes = stripes_[stripe].gradient_bytes + stripes_[stripe].returned_bytes;
    return under_way_max_ > 1 ? 0.5 * (world_size_ - 1) *
                                    (bytes / world_size_ / options_.bytes_per_second +
                                     2 * options_.seconds_per_message)
                              : 0;
  }

  const int world_size_;
  const int lead_;
  const int connections_;
  const std::vector<StripeTotals> stripes_;
  EventQueue queue_;
  OwnerWork owner_work_;
  const SimulatedNetwork::Options options_;
  SimulatedNetwork network_;
  std::deque<int> own_;    // stripes to initiate
  std::vector<int> open_;  // by bucket: stripes without a result
  int under_way_ = 0;
  int under_way_max_ = 0;
  FluidExchange result_;
};

}  // namespace

FluidExchange SimulateFluidRing(const Plan& plan, const Cluster& cluster,
                                const std::vector<double>& ready, double owner_update) {
  return OneRank(plan, cluster, ready, owner_update).Run();
}

}  // namespace gradsync
