#include "simulator/simulate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "simulator/event_queue.h"
#include "simulator/exchange.h"
#include "simulator/fluid.h"
#include "simulator/network.h"

namespace gradsync {
namespace {

constexpr int kMostRanksByChunks = 64;
// Pieces of 64 KiB that all hosts send: a second or so.
constexpr double kMostPieces = 3e6;

bool SharesMemory(const Plan& plan) { return !(plan.slots() == BucketSlots()); }

// `count` times, never falling, and none after `end`.
absl::Status CheckRise(absl::string_view what, absl::string_view each, size_t count, double end,
                       const std::vector<double>& times) {
  if (times.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": expected ", count, ", ", each, ", found ", times.size()));
  }
  double before = 0;
  for (double time : times) {
    if (!(time >= before && time <= end)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": expected between ", before, " and ", end, ", found ", time));
    }
    before = time;
  }
  return absl::OkStatus();
}

absl::Status CheckUnits(const Plan& plan, const ComputeTimes& times, double end) {
  const int buckets = static_cast<int>(plan.buckets().size());
  std::vector<bool> found(buckets, false);
  for (const std::vector<int>& unit : times.units) {
    for (int bucket : unit) {
      if (bucket >= 0 && bucket < buckets) found[bucket] = true;
    }
  }
  const auto missing = std::find(found.begin(), found.end(), false);
  if (missing != found.end()) {
    return absl::InvalidArgumentError(absl::StrCat("units: expected each bucket in one, found ",
                                                   missing - found.begin(), " in none"));
  }
  return CheckRise("turns", "two for each unit", 2 * times.units.size(), end, times.turn_begin);
}

absl::Status CheckTimes(const Plan& plan, const ComputeTimes& times) {
  for (double time : {times.forward, times.backward, times.update}) {
    if (!(time >= 0) || !std::isfinite(time)) {
      return absl::InvalidArgumentError(
          absl::StrCat("compute times: expected at least 0, found ", time));
    }
  }
  const double end = (times.forward + times.backward) * (1 + 1e-9);  // sums are rounded
  const size_t buckets = plan.buckets().size();
  GS_RETURN_IF_ERROR(CheckRise("ready times", "one per bucket", buckets, end, times.bucket_ready));
  if (!times.bucket_begin.empty()) {
    GS_RETURN_IF_ERROR(
        CheckRise("first gradients", "one per bucket", buckets, end, times.bucket_begin));
  }
  return plan.slots().parameters > 0 ? CheckUnits(plan, times, end) : absl::OkStatus();
}

absl::Status Check(const Plan& plan, const Cluster& cluster, const ComputeTimes& times) {
  GS_RETURN_IF_ERROR(CheckCluster(cluster, plan.world_size()));
  if (plan.slots().parameters > 0 && cluster.returned != Returned::kParameters) {
    return absl::InvalidArgumentError(
        "cluster: expected owners to update, who alone keep the parameters");
  }
  return CheckTimes(plan, times);
}

bool AllAlike(const Cluster& cluster) {
  return std::all_of(cluster.slowness.begin(), cluster.slowness.end(),
                     [&](double factor) { return factor == cluster.slowness[0]; });
}

SimulationMethod Choose(const Plan& plan, const Cluster& cluster) {
  const bool shared_cores = cluster.constants.cores.count > 0;
  if (!AllAlike(cluster) || SharesMemory(plan) || shared_cores) return SimulationMethod::kChunks;
  if (plan.world_size() > kMostRanksByChunks) return SimulationMethod::kFluid;
  const double pieces = 2.0 * plan.world_size() * static_cast<double>(plan.total_bytes()) / 65536;
  return pieces > kMostPieces ? SimulationMethod::kFluid : SimulationMethod::kChunks;
}

StepClock::Options ClockOptions(const Plan& plan, const Cluster& cluster,
                                const ComputeTimes& times) {
  StepClock::Options options;
  options.plan = plan;
  options.times = times;
  for (const BucketPlan& bucket : plan.buckets()) {
    options.update_shares.push_back(static_cast<double>(bucket.bytes()) /
                                    static_cast<double>(plan.total_bytes()));
  }
  options.slowness = cluster.slowness;
  if (options.slowness.empty()) options.slowness.assign(plan.world_size(), 1);
  options.workers_update = cluster.returned == Returned::kMean;
  options.overhead = cluster.constants.seconds_per_step;
  return options;
}

StepPrediction Describe(const Cluster& cluster, const ComputeTimes& times, double slowness,
                        const StepEnd& end) {
  StepPrediction prediction;
  prediction.step = end.end;
  prediction.forward = slowness * times.forward;
  prediction.backward = slowness * times.backward;
  prediction.exposed = end.exposed;
  if (cluster.returned == Returned::kMean) prediction.update = slowness * times.update;
  return prediction;
}

double OwnerUpdate(const Cluster& cluster, const ComputeTimes& times) {
  return cluster.returned == Returned::kParameters ? times.update : 0;
}

StepPrediction Fluid(const Plan& plan, const Cluster& cluster, const ComputeTimes& times) {
  const StepClock::Options options = ClockOptions(plan, cluster, times);
  const double slowness = options.slowness[0];
  std::vector<double> ready = times.bucket_ready;
  for (double& time : ready) time *= slowness;
  const FluidExchange exchange = SimulateFluid(plan, cluster, ready, OwnerUpdate(cluster, times));
  StepPrediction prediction = Describe(
      cluster, times, slowness, EndOfStep(options, 0, slowness, /*stalled=*/0, exchange.resolved));
  prediction.tx_bytes_max_host = exchange.tx_bytes_max_host;
  prediction.rx_bytes_max_host = exchange.rx_bytes_max_host;
  if (prediction.step > 0) prediction.busy_share = exchange.busy_seconds / prediction.step;
  prediction.method = SimulationMethod::kFluid;
  return prediction;
}

struct Simulated {
  std::vector<std::vector<StepEnd>> ends;  // by step, by rank
  std::vector<NodeTraffic> traffic;        // by host
  double busy_seconds = 0;                 // of the busiest interface
  int64_t max_staleness = 0;
};

// Credits and the like have no bytes, and are left out. `first_owner`: the process of the first.
void Observe(int first_owner, SimulatedNetwork* network, SimulatedExchange* exchange,
             SimulatedStep* in_full) {
  network->Observe([in_full](const SimulatedMessage& message, double begin, double end) {
    if (message.bytes == 0) return;
    // Both exchanges number contributions 0 and results 1.
    in_full->transfers.push_back({message.from, message.to, message.kind == 1,
                                  ChunkId{message.bucket, message.slot}, message.bytes, begin,
                                  end});
  });
  exchange->ObserveUpdates(
      [in_full, first_owner](int owner, ChunkId chunk, double begin, double end) {
        in_full->updates.push_back({first_owner + owner, chunk, begin, end});
      });
}

// `in_full`, unless null, gets transfers, updates, and when buckets were launched and resolved.
absl::StatusOr<Simulated> RunChunks(const Plan& plan, const Cluster& cluster,
                                    const StepClock::Options& options,
                                    SimulatedStep* in_full = nullptr) {
  EventQueue queue;
  SimulatedNetwork network(NetworkOptions(cluster), ProcessHosts(cluster, plan.world_size()),
                           &queue, /*receiver=*/nullptr);
  std::unique_ptr<SimulatedExchange> exchange;
  StepClock clock(
      options, &queue,
      [&](int rank, int step, int bucket) {
        if (in_full != nullptr) in_full->ranks[rank].ready[bucket] = queue.now();
        exchange->Launch(rank, step, bucket);
      },
      [&](int rank, int bucket) { exchange->Gather(rank, bucket); });
  const auto resolved = [&](int rank, int bucket) {
    if (in_full != nullptr) in_full->ranks[rank].resolved[bucket] = queue.now();
    clock.Resolved(rank, bucket);
  };
  GS_ASSIGN_OR_RETURN(exchange, MakeExchange(plan, cluster, OwnerUpdate(cluster, options.times),
                                             &queue, WholeNetwork(&network), resolved));
  exchange->WhenGathered([&clock](int rank, int bucket) { clock.Gathered(rank, bucket); });
  if (in_full != nullptr) {
    Observe(cluster.ring ? 0 : plan.world_size(), &network, exchange.get(), in_full);
  }
  clock.Start();
  queue.Run();

  Simulated simulated;
  simulated.ends = clock.ends();
  simulated.traffic = network.traffic();
  for (int host = 0; host < static_cast<int>(simulated.traffic.size()); ++host) {
    simulated.busy_seconds = std::max(simulated.busy_seconds, network.BusySeconds(host));
  }
  simulated.max_staleness = exchange->max_staleness();
  return simulated;
}

absl::StatusOr<StepPrediction> Chunks(const Plan& plan, const Cluster& cluster,
                                      const ComputeTimes& times) {
  const StepClock::Options options = ClockOptions(plan, cluster, times);
  GS_ASSIGN_OR_RETURN(const Simulated simulated, RunChunks(plan, cluster, options));
  const std::vector<StepEnd>& ends = simulated.ends.back();
  const auto last = std::max_element(
      ends.begin(), ends.end(), [](const StepEnd& a, const StepEnd& b) { return a.end < b.end; });
  StepPrediction prediction =
      Describe(cluster, times, options.slowness[last - ends.begin()], *last);
  for (const NodeTraffic& host : simulated.traffic) {
    prediction.tx_bytes_max_host =
        std::max(prediction.tx_bytes_max_host, static_cast<double>(host.tx_bytes));
    prediction.rx_bytes_max_host =
        std::max(prediction.rx_bytes_max_host, static_cast<double>(host.rx_bytes));
  }
  if (prediction.step > 0) prediction.busy_share = simulated.busy_seconds / prediction.step;
  prediction.method = SimulationMethod::kChunks;
  return prediction;
}

}  // namespace

absl::StatusOr<StepPrediction> SimulateStep(const Plan& plan, const Cluster& cluster,
                                            const ComputeTimes& times, SimulationMethod method) {
  GS_RETURN_IF_ERROR(Check(plan, cluster, times));
  if (!cluster.consistency.bulk()) {
    return absl::InvalidArgumentError(
        "a step: expected bsp, under which all take as long; SimulateSteps() does the others");
  }
  if (method == SimulationMethod::kAutomatic) method = Choose(plan, cluster);
  if (method == SimulationMethod::kChunks) return Chunks(plan, cluster, times);
  if (SharesMemory(plan)) {
    return absl::InvalidArgumentError("fluid: expected buckets with memory of their own");
  }
  if (!AllAlike(cluster)) {
    return absl::InvalidArgumentError("fluid: expected workers that are alike, found slower ones");
  }
  if (cluster.constants.cores.count > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("fluid: expected hosts with cores of their own, found ",
                     cluster.constants.cores.count, " for all"));
  }
  return Fluid(plan, cluster, times);
}

absl::StatusOr<SimulatedStep> SimulateStepInFull(const Plan& with_slots, const Cluster& cluster,
                                                 const ComputeTimes& times) {
  GS_ASSIGN_OR_RETURN(const Plan plan, with_slots.WithSlots(BucketSlots()));
  GS_RETURN_IF_ERROR(Check(plan, cluster, times));
  if (!cluster.consistency.bulk()) {
    return absl::InvalidArgumentError("a step in full: expected bsp, under which all take as long");
  }
  const StepClock::Options options = ClockOptions(plan, cluster, times);
  SimulatedStep step;
  step.ranks.resize(plan.world_size());
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    SimulatedStep::Rank& state = step.ranks[rank];
    const double slowness = options.slowness[rank];
    state.forward = slowness * times.forward;
    state.backward = slowness * (times.forward + times.backward);
    state.ready.resize(plan.buckets().size());
    state.resolved.resize(plan.buckets().size());
    for (double share : options.update_shares) {
      state.updates.push_back(options.workers_update ? slowness * times.update * share : 0);
    }
  }
  GS_ASSIGN_OR_RETURN(const Simulated simulated, RunChunks(plan, cluster, options, &step));
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    step.ranks[rank].end = simulated.ends.back()[rank].end;
  }
  return step;
}

absl::StatusOr<GroupRate> SimulateSteps(const Plan& plan, const Cluster& cluster,
                                        const ComputeTimes& times, int steps,
                                        const SlownessOfStep& slowness) {
  GS_RETURN_IF_ERROR(Check(plan, cluster, times));
  if (steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("steps: expected at least 1, found ", steps));
  }
  StepClock::Options options = ClockOptions(plan, cluster, times);
  options.steps = steps;
  options.slowness_of_step = slowness;
  GS_ASSIGN_OR_RETURN(const Simulated simulated, RunChunks(plan, cluster, options));
  double until = simulated.ends.back()[0].end;
  for (const StepEnd& last : simulated.ends.back()) until = std::min(until, last.end);
  double done = 0;  // parts of steps count
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    double begin = 0;
    for (const std::vector<StepEnd>& step : simulated.ends) {
      const double end = step[rank].end;
      if (end > begin) done += std::max(0.0, (std::min(end, until) - begin) / (end - begin));
      begin = end;
    }
  }
  GroupRate rate;
  if (until > 0) rate.steps_per_second = done / plan.world_size() / until;
  rate.max_staleness = simulated.max_staleness;
  return rate;
}

absl::StatusOr<double> SimulateExchange(const Plan& plan, const Cluster& cluster,
                                        SimulationMethod method) {
  ComputeTimes times;
  times.bucket_ready.assign(plan.buckets().size(), 0);
  GS_ASSIGN_OR_RETURN(const StepPrediction prediction, SimulateStep(plan, cluster, times, method));
  return prediction.step;
}

}  // namespace gradsync
