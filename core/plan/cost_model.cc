#include "core/plan/cost_model.h"

#include <algorithm>

namespace gradsync {

double RingLoad(int workers) {
  const double n = workers;
  return 2 * (n - 1) / n;
}

double DedicatedPsLoad(int workers, int servers) {
  return std::max(1.0, static_cast<double>(workers) / servers);
}

double ColocatedPsLoad(int workers, int servers) {
  return static_cast<double>(workers + servers - 2) / servers;
}

ServerShares MixedShares(int workers, int dedicated_servers) {
  const double n = workers;
  const double k = dedicated_servers;
  if (k >= n) return {0, 1 / k};
  const double whole = n * n + k * n - 2 * k;
  return {(n - k) / whole, 2 * (n - 1) / whole};
}

double MixedPsLoad(int workers, int dedicated_servers) {
  const double n = workers;
  const double k = dedicated_servers;
  if (k >= n) return 1;
  return 2 * n * (n - 1) / (n * n + k * n - 2 * k);
}

std::vector<double> MixedWeights(int workers, int dedicated_servers) {
  const ServerShares shares = MixedShares(workers, dedicated_servers);
  std::vector<double> weights(workers, shares.colocated);
  weights.resize(workers + dedicated_servers, shares.dedicated);
  return weights;
}

bool DedicatedPsBeatsRing(int workers, int servers) {
  const double n = workers;
  return workers >= 3 && servers > n * n / (2 * (n - 1));
}

double ShardedRingLoad(int workers) { return 1.5 * RingLoad(workers); }

double ShardedDedicatedPsLoad(int workers, int servers) {
  return 2 * DedicatedPsLoad(workers, servers);
}

double ShardedColocatedPsLoad(int workers, int servers) {
  const double k = servers;
  return std::max(2 * workers + k - 3, workers + 2 * k - 3) / k;
}

double ShardedMixedPsLoad(int workers, int dedicated_servers) {
  const ServerShares shares = MixedShares(workers, dedicated_servers);
  const double n = workers;
  const double own = shares.colocated;
  const double beside = std::max(2 * (n - 1) * own + 1 - own, (n - 1) * own + 2 * (1 - own));
  return dedicated_servers == 0 ? beside : std::max(beside, 2 * n * shares.dedicated);
}

bool DedicatedPsBeatsShardedRing(int workers, int servers) {
  const double n = workers;
  return workers >= 4 && 3 * (n - 1) * servers > 2 * n * n;
}

double ExchangeSeconds(double load, const ExchangeCost& cost) {
  const double messages = cost.chunk_bytes > 0 ? cost.bytes / cost.chunk_bytes : 0;
  return load * ((cost.bytes + cost.stripe_bytes) / cost.bytes_per_second +
                 cost.seconds_per_message * messages);
}

double AllReduceBusFactor(int workers) { return RingLoad(workers); }

}  // namespace gradsync
