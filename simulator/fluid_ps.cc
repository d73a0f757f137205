#include "simulator/fluid_ps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/plan/cost_model.h"
#include "core/plan/flow_control.h"
#include "simulator/stripe_table.h"

namespace gradsync {
namespace {

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
// 4 to 64 workers (docs/cost_model.md).
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

}  // namespace

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

}  // namespace gradsync
