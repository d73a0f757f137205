#include "benchmarks/prediction/prediction.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/exchange/exchange_plan.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/records/proto_json.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"
#include "core/plan/cost_model.h"
#include "core/plan/shard_map.h"
#include "core/plan/sharding.h"
#include "core/program/byte_sizes.h"
#include "proto/run_record.pb.h"
#include "simulator/calibration.h"

namespace gradsync {
namespace {

// As //worker has it, unless it is told otherwise; of the optimizer only its state's size matters.
constexpr double kMomentum = 0.9;

absl::Status Refuse(absl::string_view what, absl::string_view expected, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected ", expected, ", found \"", found, "\""));
}

absl::StatusOr<Plan> PlanOf(const proto::StepProfile& profile, const PredictedJob& job) {
  PlanOptions options;
  options.world_size = job.placed.workers;
  options.bucket_bytes = job.bucket_bytes;
  options.first_bucket_bytes = job.first_bucket_bytes;
  options.chunk_bytes = job.chunk_bytes;
  options.codec = job.placed.spec.codec;
  GS_ASSIGN_OR_RETURN(const Plan plan, ProfilePlan(profile, options, kMomentum));
  return WithZero(plan, profile, job.placed.zero);
}

// Seconds. `batch` is how many times the profile's a worker computes.
absl::StatusOr<ComputeTimes> TimesOf(const proto::StepProfile& profile, const Plan& plan,
                                     double batch, double scale) {
  ComputeTimes times;
  times.forward = 1e-6 * scale * batch * profile.forward_us();
  times.backward = 1e-6 * scale * batch * profile.backward_us();
  times.update = 1e-6 * scale * profile.update_us();
  ComputedStep& step = times;
  GS_ASSIGN_OR_RETURN(step, ComputedStepUs(profile, plan));
  for (std::vector<double>* each : {&step.bucket_ready, &step.bucket_begin, &step.turn_begin}) {
    for (double& time : *each) time *= 1e-6 * scale * batch;
  }
  return times;
}

// What replicas in each process add to a step (worker/train/data_parallel_step.h): device 0 copies
// the parameters to the others before all of them compute, and adds their gradients up when all
// have, bucket by bucket, which only then are complete.
struct Replication {
  int replicas = 1;
  double bytes = 0;    // from device 0 in a step, and as many to it
  double seconds = 0;  // of one of the two

  void AddTo(const Plan& plan, ComputeTimes* times) const {
    if (replicas == 1) return;
    const double applied = seconds + times->forward + times->backward;
    double added = 0;  // bytes
    for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
      added += static_cast<double>(plan.buckets()[b].bytes());
      times->bucket_ready[b] = applied + seconds * added / static_cast<double>(plan.total_bytes());
    }
    times->forward += seconds;
    times->backward += seconds;
  }

  void Record(const ComputeTimes& times, proto::Run* run) const {
    if (replicas == 1) return;
    run->set_replicate_ms_p50(1e3 * seconds);
    run->set_apply_ms_p50(1e3 * (times.forward + times.backward - 2 * seconds));
    run->set_reduce_ms_p50(1e3 * seconds);
    run->set_device0_tx_bytes(bytes);
    run->set_device0_rx_bytes(bytes);
    run->set_worker_memory_bytes(run->worker_memory_bytes() + 2 * bytes);  // parameters, gradients
  }
};

absl::StatusOr<Replication> ReplicationOf(const Plan& plan, const PredictedJob& job) {
  Replication replication;
  replication.replicas = job.placed.arrangement.data_parallel;
  if (replication.replicas == 1) return replication;
  if (replication.replicas < 1) {
    return Refuse("data_parallel", "at least 1", absl::StrCat(replication.replicas));
  }
  if (job.placed.zero >= 2) {
    return Refuse("zero", "0 or 1 with --data_parallel", absl::StrCat(job.placed.zero));
  }
  if (!(job.device_bytes_per_second > 0)) {
    return Refuse("device_bandwidth", "more than 0", absl::StrCat(job.device_bytes_per_second));
  }
  replication.bytes = (replication.replicas - 1) * static_cast<double>(plan.total_bytes());
  replication.seconds = replication.bytes / job.device_bytes_per_second;
  return replication;
}

// `sharded`: owners alone keep parameters.
double LoadOf(const Cluster& cluster, int workers, bool sharded) {
  if (cluster.ring) return sharded ? ShardedRingLoad(workers) : RingLoad(workers);
  const int servers = cluster.servers;
  switch (cluster.placement) {
    case Placement::kNone:
    case Placement::kDedicated:
      return sharded ? ShardedDedicatedPsLoad(workers, servers) : DedicatedPsLoad(workers, servers);
    case Placement::kColocated:
      return sharded ? ShardedColocatedPsLoad(workers, servers) : ColocatedPsLoad(workers, servers);
    case Placement::kMixed:
      return sharded ? ShardedMixedPsLoad(workers, servers) : MixedPsLoad(workers, servers);
  }
  return 0;
}

// One exchange of everything at once, of which `run` has the sizes.
double ModelMicroseconds(const proto::Run& run, const Cluster& cluster) {
  ExchangeCost cost;
  cost.bytes = run.bytes();
  cost.bytes_per_second = cluster.rate();
  cost.chunk_bytes = run.chunk_bytes();
  cost.stripe_bytes = std::min(cost.bytes, run.workers() * run.chunk_bytes());
  cost.seconds_per_message = cluster.constants.seconds_per_message;
  return 1e6 * ExchangeSeconds(LoadOf(cluster, run.workers(), run.zero() == 3), cost);
}

// Bytes of gradients of the server that owns most. `exact`: by chunks; else by its share, for more
// servers than a ShardMap is for.
absl::StatusOr<int64_t> MostOwned(const Plan& plan, const PlacedJob& job, bool exact) {
  const std::vector<double> weights = PlacedWeights(job);
  int64_t most = 0;
  if (!exact) {
    const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double largest = *std::max_element(weights.begin(), weights.end());
    return static_cast<int64_t>(static_cast<double>(plan.total_bytes()) * largest / all);
  }
  GS_ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(plan, weights));
  for (int s = 0; s < shards.servers(); ++s) most = std::max(most, shards.bytes(s));
  return most;
}

absl::Status SetMemory(const Plan& plan, const PlacedJob& job, bool exact, proto::Run* run) {
  const UpdateSite site = job.spec.update;
  if (job.spec.topology != Topology::kPs) {
    const UpdateSite own = job.spec.topology == Topology::kLocal ? UpdateSite::kWorker : site;
    run->set_worker_memory_bytes(static_cast<double>(RingMemory(plan, own, /*rank=*/0).total()));
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(const int64_t owned, MostOwned(plan, job, exact));
  run->set_worker_memory_bytes(static_cast<double>(PsWorkerMemory(plan, site).total()));
  run->set_server_memory_bytes(static_cast<double>(PsServerMemory(plan, site, owned).total()));
  return absl::OkStatus();
}

void SetTimes(const StepPrediction& step, proto::Run* run) {
  run->set_step_ms_p50(1e3 * step.step);
  run->set_exposed_ms_p50(1e3 * step.exposed);
  proto::StepBreakdown* const parts = run->mutable_breakdown_ms();
  parts->set_forward(1e3 * step.forward);
  parts->set_backward(1e3 * step.backward);
  parts->set_exposed(1e3 * step.exposed);
  parts->set_update(1e3 * step.update);
  run->set_wire_tx_bytes_max_node(step.tx_bytes_max_host);
  run->set_wire_rx_bytes_max_node(step.rx_bytes_max_host);
}

}  // namespace

absl::StatusOr<Cluster> ClusterOfJob(const PlacedJob& job, const LinkConstants& constants) {
  Cluster cluster;
  cluster.ring = job.spec.topology == Topology::kRing;
  cluster.servers = cluster.ring ? 0 : job.servers;
  if (!cluster.ring) cluster.placement = job.placement;
  cluster.returned =
      job.spec.update == UpdateSite::kOwner ? Returned::kParameters : Returned::kMean;
  GS_ASSIGN_OR_RETURN(cluster.bytes_per_second, ParseBandwidth(job.bandwidth));
  cluster.constants = constants;
  cluster.consistency = job.spec.consistency;
  if (const int connections = ConnectionsOf(job.spec); connections > 0) {
    (cluster.ring ? cluster.ring_connections : cluster.ps_connections) = connections;
  }
  return cluster;
}

absl::StatusOr<proto::Run> PredictRun(const proto::StepProfile& profile, const PredictedJob& job) {
  GS_RETURN_IF_ERROR(ValidateStepProfile(profile));
  GS_RETURN_IF_ERROR(CheckWhole(profile));
  PlacedJob placed = job.placed;
  const bool local = placed.spec.topology == Topology::kLocal;
  placed.spec.link = local ? Link::kNone : Link::kGrpc;
  if (placed.workers < 1) return Refuse("workers", "at least 1", absl::StrCat(placed.workers));
  GS_RETURN_IF_ERROR(CheckJob(&placed));
  if (!(job.compute_scale >= 0) || !std::isfinite(job.compute_scale)) {
    return Refuse("compute_scale", "at least 0", absl::StrCat(job.compute_scale));
  }
  const double profile_batch = std::max(1, profile.batch_size());
  const double batch_size =
      job.batch_size > 0 ? static_cast<double>(job.batch_size) : profile_batch;
  GS_ASSIGN_OR_RETURN(const Plan plan, PlanOf(profile, job));
  GS_ASSIGN_OR_RETURN(const Replication replication, ReplicationOf(plan, job));
  GS_ASSIGN_OR_RETURN(
      ComputeTimes times,
      TimesOf(profile, plan, batch_size / replication.replicas / profile_batch, job.compute_scale));
  const double alone = times.forward + times.backward + times.update;
  replication.AddTo(plan, &times);

  proto::Run run;
  run.set_library("gradsync");
  SetKind(placed.spec, &run);
  SetPlaced(placed, &run);
  SetArrangement(placed.arrangement, &run);
  run.set_model(profile.model());
  run.set_batch_size(static_cast<int>(batch_size));
  run.set_threads(profile.threads());
  run.set_bytes(static_cast<double>(plan.total_bytes()));
  for (const BucketPlan& bucket : plan.buckets()) {
    run.set_bucket_bytes(std::max(run.bucket_bytes(), static_cast<double>(bucket.bytes())));
    run.set_chunk_bytes(std::max(run.chunk_bytes(), 4.0 * bucket.layout.chunk_elements()));
  }
  StepPrediction step;
  step.forward = times.forward;
  step.backward = times.backward;
  step.update = times.update;
  step.step = times.forward + times.backward + times.update;
  if (local) {
    run.clear_consistency();
    run.clear_bandwidth();
  } else {
    GS_ASSIGN_OR_RETURN(Cluster cluster, ClusterOfJob(placed, job.constants));
    cluster.slowness = job.slowness;
    if (cluster.consistency.bulk() && job.slowness_of_step == nullptr) {
      GS_ASSIGN_OR_RETURN(step, SimulateStep(plan, cluster, times, job.method));
    } else {
      GS_ASSIGN_OR_RETURN(const GroupRate rate,
                          SimulateSteps(plan, cluster, times, job.steps, job.slowness_of_step));
      step.step = 1 / rate.steps_per_second;
      if (placed.spec.update == UpdateSite::kOwner) step.update = 0;
      step.exposed = std::max(0.0, step.step - step.forward - step.backward - step.update);
      run.set_max_staleness(static_cast<int>(rate.max_staleness));
    }
    run.set_connections(cluster.ring ? cluster.ring_connections : cluster.ps_connections);
    run.set_model_us(ModelMicroseconds(run, cluster));
  }
  SetTimes(step, &run);
  GS_RETURN_IF_ERROR(
      SetMemory(plan, placed, /*exact=*/step.method == SimulationMethod::kChunks, &run));
  replication.Record(times, &run);
  if (step.step > 0) {
    run.set_steps_per_s(1 / step.step);
    run.set_samples_per_s(placed.workers * batch_size / step.step);
    run.set_scaling_efficiency(alone / step.step);
  }
  return run;
}

absl::StatusOr<std::vector<Probe>> ProbesOf(const proto::RunRecords& records) {
  std::vector<Probe> probes;
  for (const proto::Run& run : records.runs()) {
    const bool exchange = run.time_us_p50() > 0 && run.model().empty();
    if (run.library() != "gradsync" || !exchange || run.bandwidth().empty() || run.wrong() > 0 ||
        !run.invalid().empty()) {
      continue;
    }
    PlacedJob job = JobOf(run);
    job.spec.link = Link::kGrpc;  // Gloo's rings send as much
    GS_RETURN_IF_ERROR(CheckJob(&job));
    Probe probe;
    GS_ASSIGN_OR_RETURN(probe.cluster, ClusterOfJob(job, LinkConstants()));
    ExchangeOptions exchange_options;
    exchange_options.world_size = run.workers();
    exchange_options.bytes = static_cast<int64_t>(run.bytes());
    exchange_options.bucket_bytes = static_cast<int64_t>(run.bucket_bytes());
    exchange_options.chunk_bytes = static_cast<int64_t>(run.chunk_bytes());
    exchange_options.codec = job.spec.codec;
    GS_ASSIGN_OR_RETURN(probe.plan, ExchangePlan(exchange_options));
    if (run.connections() > 0) {
      probe.cluster.ring_connections = probe.cluster.ps_connections = run.connections();
    }
    probe.seconds = 1e-6 * run.time_us_p50();
    probe.core_seconds = run.cpu_share() * records.machine().cores() * probe.seconds;
    probes.push_back(std::move(probe));
  }
  return probes;
}

absl::StatusOr<Calibration> FitProbe(const std::string& path, LinkConstants start) {
  proto::RunRecords records;
  const absl::Status read = ReadJson(path, &records);
  if (!read.ok()) return Named("probe", read);
  const absl::StatusOr<std::vector<Probe>> probes = ProbesOf(records);
  if (!probes.ok()) return Named("probe", probes.status());
  for (const proto::Network& network : records.networks()) {
    if (network.tcp_factor() > 0) start.rate_factor = network.tcp_factor();
  }
  if (start.cores.count > 0) {
    const absl::StatusOr<CoreCosts> costs = FitCoreCosts(*probes, start.cores.count);
    if (!costs.ok()) return Named("probe", costs.status());
    start.cores = *costs;
  }
  absl::StatusOr<Calibration> fit = Calibrate(
      *probes,
      {LinkConstant::kLatency, LinkConstant::kSecondsPerMessage, LinkConstant::kSecondsPerStep},
      start);
  return fit.ok() ? fit : Named("probe", fit.status());
}

std::string FormatCalibration(const Calibration& calibration) {
  const LinkConstants& constants = calibration.constants;
  std::string cores;
  if (constants.cores.count > 0) {
    cores = absl::StrFormat(
        "; an end of a message takes one of %d cores for %.1f us and %.2f ns per byte",
        constants.cores.count, 1e6 * constants.cores.seconds_per_message,
        1e9 * constants.cores.seconds_per_byte);
  }
  return absl::StrFormat(
      "probe: rate_factor %.3f, latency %.0f us, message_cost %.1f us, step_overhead %.0f us; "
      "simulated times of the probe itself within %.1f %%%s",
      constants.rate_factor, 1e6 * constants.latency, 1e6 * constants.seconds_per_message,
      1e6 * constants.seconds_per_step, 100 * calibration.worst_error, cores);
}

}  // namespace gradsync
