#include "simulator/fluid.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "core/plan/cost_model.h"
#include "core/plan/shard_map.h"
#include "simulator/event_queue.h"
#include "simulator/exchange.h"
#include "simulator/network.h"

namespace gradsync {
namespace {

// A stripe of a plan, all its chunks together.
struct StripeTotals {
  int bucket = 0;
  int chunks = 0;             // that are not empty
  double gradient_bytes = 0;  // payload towards the owners
  double returned_bytes = 0;  // and back
  double share = 0;           // of the plan's elements
};

// All stripes in the order in which they are sent.
std::vector<StripeTotals> StripesOf(const Plan& plan, Returned returned) {
  std::vector<StripeTotals> stripes;
  const double all = static_cast<double>(plan.total_bytes());
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int stripe = 0; stripe < layout.stripes(); ++stripe) {
      StripeTotals totals;
      totals.bucket = b;
      for (int chunk = 0; chunk < layout.world_size(); ++chunk) {
        const int64_t elements = layout.range(layout.slot(stripe, chunk)).size();
        if (elements == 0) break;  // and so are those after it
        ++totals.chunks;
        totals.gradient_bytes += GradientForm(plan.codec(), elements).bytes();
        totals.returned_bytes +=
            ReturnedForm(plan.codec(), elements, plan.world_size(), returned).bytes();
        totals.share += 4 * elements / all;
      }
      if (totals.chunks > 0) stripes.push_back(totals);
    }
  }
  return stripes;
}

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

// For at least two workers.
FluidExchange SimulateFluidRing(const Plan& plan, const Cluster& cluster,
                                const std::vector<double>& ready, double owner_update) {
  return OneRank(plan, cluster, ready, owner_update).Run();
}

constexpr double kNever = std::numeric_limits<double>::infinity();

// What limits: the two directions of each kind of host, and the servers' optimizers.
enum Resource { kWorkerTx, kWorkerRx, kBothTx, kBothRx, kServerTx, kServerRx, kUpdate, kResources };

// Seconds of each resource.
using Use = std::array<double, kResources>;

// Servers that are alike: beside workers, or on hosts of their own.
struct ServerKind {
  bool beside_worker = false;
  double share = 0;  // of everything, that each owns
  int count = 0;
  int connections = 0;          // of a worker to each
  bool colocated_only = false;  // no other servers
};

std::vector<ServerKind> KindsOf(const Cluster& cluster, int workers) {
  const int k = cluster.servers;
  const int connections = cluster.ps_connections;
  if (cluster.placement == Placement::kDedicated) return {{false, 1.0 / k, k, connections}};
  if (cluster.placement == Placement::kColocated) return {{true, 1.0 / k, k, connections, true}};
  const ServerShares shares = MixedShares(workers, k);
  const std::vector<int> streams = StreamsByServer(ServerWeights(cluster, workers), connections);
  std::vector<ServerKind> kinds;
  if (shares.colocated > 0) kinds.push_back({true, shares.colocated, workers, streams.front()});
  if (k > 0) kinds.push_back({false, shares.dedicated, k, streams.back()});
  return kinds;
}

// Stripes that are under way together on the connections of a worker and a server: each connection
// carries a chunk, and a pair has n * share chunks of a stripe.
double StripesTogether(int workers, const ServerKind& kind) {
  if (kind.colocated_only) return 1;
  return std::max(1.0, kind.connections / (workers * kind.share));
}

// By bucket, how much later its last sums are because workers are not quite in step. Where workers'
// interfaces and servers' are equally busy, neither can make up for what the other was late; with
// more of one kind, its interfaces have time to spare. In stripes, fitted to what chunks do from
// 4 to 64 workers (docs/compare/cost_model.md).
std::vector<double> Delays(const std::vector<StripeTotals>& stripes, const Cluster& cluster,
                           const Plan& plan) {
  std::vector<double> delays(plan.buckets().size(), 0);
  const bool equally_busy =
      cluster.placement == Placement::kDedicated && cluster.servers == plan.world_size();
  if (!equally_busy) return delays;
  for (const StripeTotals& stripe : stripes) {
    const double seconds = stripe.gradient_bytes / cluster.rate() +
                           stripe.chunks * cluster.constants.seconds_per_message;
    delays[stripe.bucket] = std::max(delays[stripe.bucket], 0.3 * seconds);
  }
  return delays;
}

// A stretch of a bucket that one kind of server owns, as it flows one way.
struct Piece {
  int bucket = 0;
  Use use = {};
  double growth = 0;  // rate in pieces per second at which each connection has the same bandwidth
};

// Pushes or pulls of one kind of server, one piece after another.
struct Stream {
  std::vector<Piece> pieces;
  std::vector<double> from;  // when each may begin
  std::vector<double> end;
  size_t next = 0;
  double left = 1;  // of the next piece
  double rate = 0;

  bool done() const { return next == pieces.size(); }
  bool active(double now) const { return !done() && from[next] <= now; }
};

// Bytes, or seconds, on each interface when servers of `kind` get or send what takes `there` and
// `back` in all.
void AddFlow(const ServerKind& kind, const Cluster& cluster, int workers, double amount, bool push,
             Use* use) {
  const double owned = kind.share * amount;  // by one server
  const double all = kind.count * owned;
  const bool both_hosts = cluster.placement != Placement::kDedicated;
  const bool worker_hosts =
      !both_hosts || (cluster.placement == Placement::kColocated && cluster.servers < workers);
  const int own = kind.beside_worker ? 1 : 0;
  if (worker_hosts) (*use)[push ? kWorkerTx : kWorkerRx] += all;
  if (both_hosts) (*use)[push ? kBothTx : kBothRx] += all - own * owned;
  if (kind.beside_worker) {
    (*use)[push ? kBothRx : kBothTx] += (workers - 1) * owned;
  } else {
    (*use)[push ? kServerRx : kServerTx] += workers * owned;
  }
}

// Cuts each bucket's stripes into pieces of about `stripes_together`.
void AddPieces(const std::vector<StripeTotals>& stripes, const ServerKind& kind,
               const Cluster& cluster, int workers, double owner_update, Stream* push,
               Stream* pull) {
  const double together = StripesTogether(workers, kind);
  for (size_t first = 0; first < stripes.size();) {
    size_t last = first;
    StripeTotals bucket;
    for (; last < stripes.size() && stripes[last].bucket == stripes[first].bucket; ++last) {
      bucket.chunks += stripes[last].chunks;
      bucket.gradient_bytes += stripes[last].gradient_bytes;
      bucket.returned_bytes += stripes[last].returned_bytes;
      bucket.share += stripes[last].share;
    }
    const double pieces = std::max(1.0, std::round(static_cast<double>(last - first) / together));
    const double messages = bucket.chunks * cluster.constants.seconds_per_message;
    const double there = (bucket.gradient_bytes / cluster.rate() + messages) / pieces;
    const double back = (bucket.returned_bytes / cluster.rate() + messages) / pieces;
    Piece out, in;
    out.bucket = in.bucket = stripes[first].bucket;
    AddFlow(kind, cluster, workers, there, /*push=*/true, &out.use);
    AddFlow(kind, cluster, workers, back, /*push=*/false, &in.use);
    in.use[kUpdate] = kind.share * bucket.share * owner_update / pieces;
    out.growth = kind.connections / (kind.share * there);
    in.growth = kind.connections / (kind.share * back);
    push->pieces.insert(push->pieces.end(), static_cast<size_t>(pieces), out);
    pull->pieces.insert(pull->pieces.end(), static_cast<size_t>(pieces), in);
    first = last;
  }
}

// Weighted max-min: the rates of all active streams grow until a resource is full, then those of
// the others.
void ShareOut(double now, std::vector<Stream>* streams) {
  std::vector<Stream*> growing;
  Use free;
  free.fill(1);
  for (Stream& stream : *streams) {
    stream.rate = 0;
    if (stream.active(now)) growing.push_back(&stream);
  }
  while (!growing.empty()) {
    Use wanted = {};
    for (const Stream* stream : growing) {
      const Piece& piece = stream->pieces[stream->next];
      for (int r = 0; r < kResources; ++r) wanted[r] += piece.growth * piece.use[r];
    }
    double growth = kNever;
    for (int r = 0; r < kResources; ++r) {
      if (wanted[r] > 0) growth = std::min(growth, free[r] / wanted[r]);
    }
    Use full = {};
    for (int r = 0; r < kResources; ++r) {
      full[r] = wanted[r] > 0 && free[r] <= growth * wanted[r] * (1 + 1e-9);
      free[r] = std::max(0.0, free[r] - growth * wanted[r]);
    }
    std::vector<Stream*> left;
    for (Stream* stream : growing) {
      const Piece& piece = stream->pieces[stream->next];
      stream->rate += growth * piece.growth;
      bool limited = growth == kNever;  // it uses nothing: all within hosts
      for (int r = 0; r < kResources; ++r) limited |= full[r] > 0 && piece.use[r] > 0;
      if (!limited) left.push_back(stream);
    }
    growing = std::move(left);
  }
}

// Lets the streams flow from `now` until one's next piece ends or begins; returns that time.
double Flow(double now, std::vector<Stream>* streams) {
  double until = kNever;
  for (const Stream& stream : *streams) {
    if (stream.done()) continue;
    const double ends = stream.rate == kNever ? now : now + stream.left / stream.rate;
    until = std::min(until, stream.active(now) ? ends : stream.from[stream.next]);
  }
  for (Stream& stream : *streams) {
    if (!stream.active(now)) continue;
    const double ends = stream.rate == kNever ? now : now + stream.left / stream.rate;
    stream.left -= stream.rate == kNever ? 0 : (until - now) * stream.rate;
    if (ends > until) continue;
    stream.end[stream.next++] = until;
    stream.left = 1;
  }
  return until;
}

FluidExchange SimulateFluidPs(const Plan& plan, const Cluster& cluster,
                              const std::vector<double>& ready, double owner_update) {
  const int n = plan.world_size();
  const std::vector<StripeTotals> stripes = StripesOf(plan, cluster.returned);
  const std::vector<ServerKind> kinds = KindsOf(cluster, n);
  const double latency = cluster.constants.latency;

  std::vector<Stream> streams(2 * kinds.size());  // of each kind pushes, then pulls
  for (size_t i = 0; i < kinds.size(); ++i) {
    Stream& push = streams[2 * i];
    Stream& pull = streams[2 * i + 1];
    AddPieces(stripes, kinds[i], cluster, n, owner_update, &push, &pull);
    for (const Piece& piece : push.pieces) push.from.push_back(ready[piece.bucket]);
    pull.from.assign(pull.pieces.size(), kNever);
    push.end = pull.end = pull.from;
  }
  Use busy = {};
  for (const Stream& stream : streams) {
    for (const Piece& piece : stream.pieces) {
      for (int r = 0; r < kUpdate; ++r) busy[r] += piece.use[r];
    }
  }
  Use bytes = {};
  for (const StripeTotals& stripe : stripes) {
    for (const ServerKind& kind : kinds) {
      AddFlow(kind, cluster, n, stripe.gradient_bytes, /*push=*/true, &bytes);
      AddFlow(kind, cluster, n, stripe.returned_bytes, /*push=*/false, &bytes);
    }
  }

  double now = 0;
  const auto done = [](const Stream& stream) { return stream.done(); };
  while (!std::all_of(streams.begin(), streams.end(), done)) {
    ShareOut(now, &streams);
    now = Flow(now, &streams);
    for (size_t i = 0; i < streams.size(); i += 2) {
      for (size_t p = streams[i + 1].next; p < streams[i].next; ++p) {
        streams[i + 1].from[p] = streams[i].end[p] + latency;
      }
    }
  }

  FluidExchange result;
  result.resolved = ready;
  for (size_t i = 1; i < streams.size(); i += 2) {
    for (size_t p = 0; p < streams[i].pieces.size(); ++p) {
      double& resolved = result.resolved[streams[i].pieces[p].bucket];
      resolved = std::max(resolved, streams[i].end[p] + latency);
    }
  }
  const std::vector<double> delays = Delays(stripes, cluster, plan);
  for (size_t b = 0; b < delays.size(); ++b) result.resolved[b] += delays[b];
  result.tx_bytes_max_host = std::max({bytes[kWorkerTx], bytes[kBothTx], bytes[kServerTx]});
  result.rx_bytes_max_host = std::max({bytes[kWorkerRx], bytes[kBothRx], bytes[kServerRx]});
  result.busy_seconds = *std::max_element(busy.begin(), busy.begin() + kUpdate);
  return result;
}

}  // namespace

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
