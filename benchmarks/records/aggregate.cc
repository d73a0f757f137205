#include "benchmarks/records/aggregate.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/records/curve.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/shard_map.h"
#include "core/plan/sharding.h"

namespace gradsync {
namespace {

using Metrics = std::vector<proto::WorkerMetrics>;

absl::Status CheckRank(const proto::WorkerMetrics& first, const proto::WorkerMetrics& metrics,
                       int rank) {
  const auto same = [rank](absl::string_view what, const auto& expected, const auto& found) {
    if (found == expected) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("metrics of rank ", rank, ": expected ", what, " ",
                                            expected, " as on rank 0, found ", found));
  };
  const int steps = metrics.step_ms_size();
  GS_RETURN_IF_ERROR(same("rank", rank, metrics.rank()));
  GS_RETURN_IF_ERROR(same("measured steps", first.step_ms_size(), steps));
  for (const auto* part : {&metrics.data_ms(), &metrics.forward_ms(), &metrics.backward_ms(),
                           &metrics.exposed_ms(), &metrics.update_ms()}) {
    GS_RETURN_IF_ERROR(same("parts of steps", steps, part->size()));
  }
  GS_RETURN_IF_ERROR(same("topology", first.topology(), metrics.topology()));
  GS_RETURN_IF_ERROR(same("link", first.link(), metrics.link()));
  GS_RETURN_IF_ERROR(same("update", first.update(), metrics.update()));
  GS_RETURN_IF_ERROR(same("batch size", first.batch_size(), metrics.batch_size()));
  GS_RETURN_IF_ERROR(same("consistency", first.consistency(), metrics.consistency()));
  GS_RETURN_IF_ERROR(same("mesh", first.mesh(), metrics.mesh()));
  GS_RETURN_IF_ERROR(same("split", first.split(), metrics.split()));
  if (SpecOf(first).topology == Topology::kLocal) return absl::OkStatus();
  return same("params_sha256", first.params_sha256(), metrics.params_sha256());
}

double SamplesPerStep(const proto::WorkerMetrics& worker) {
  return worker.batch_size() * std::max(1, worker.accumulate());
}

// How many of them have other samples than the rest.
absl::StatusOr<int> Replicas(const proto::WorkerMetrics& first, int workers) {
  GS_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(first.mesh(), workers));
  return mesh.replicas();
}

int MeasuredSteps(const proto::WorkerMetrics& worker) {
  return worker.measured_steps() > 0 ? worker.measured_steps() : worker.step_ms_size();
}

void FillJob(const proto::WorkerMetrics& first, int workers, int servers, proto::Run* run) {
  run->set_library("gradsync");
  run->set_topology(first.topology());
  run->set_link(first.link());
  run->set_update(first.update());
  run->set_bytes_uncounted(first.bytes_uncounted());
  run->set_own_order(first.own_order());
  run->set_placement(PlacementName(servers > 0 ? Placement::kDedicated : Placement::kNone));
  run->set_workers(workers);
  run->set_servers(servers);
  run->set_bytes(first.gradient_bytes());
  run->set_bucket_bytes(first.bucket_bytes());
  run->set_chunk_bytes(first.chunk_bytes());
  run->set_compression(first.compression());
  run->set_connections(first.connections());
  run->mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  run->set_model(first.model());
  run->set_data(first.data());
  run->set_batch_size(first.batch_size());
  run->set_threads(first.threads());
  run->set_precision(first.precision());
  run->set_channels_last(first.channels_last());
  run->set_tf32(first.tf32());
  run->set_cudnn_benchmark(first.cudnn_benchmark());
  run->set_loader_threads(first.loader_threads());
  run->set_skipped_steps(first.skipped_steps());
  run->set_nccl_version(first.nccl_version());
  run->set_nccl_asked(first.nccl_asked());
  run->set_straggler(first.straggler());
  run->set_steps(MeasuredSteps(first));
  run->set_accuracy(first.test_accuracy());
  run->set_params_sha256(first.params_sha256());
  run->set_consistency(ConsistencyName(SpecOf(first).consistency));
  Arrangement arrangement;
  arrangement.mesh = first.mesh();
  arrangement.schedule = first.pipeline_schedule();
  arrangement.micro_batches = first.micro_batches();
  arrangement.data_parallel = std::max(1, first.data_parallel());
  SetArrangement(arrangement, run);
  run->set_split(first.split());
}

// Workers that train by themselves say what each has for itself; the others have said it already.
void FillLosses(const Metrics& workers, proto::Run* run) {
  const int own = SpecOf(*run).topology == Topology::kLocal ? static_cast<int>(workers.size()) : 1;
  for (int i = 0; i < own; ++i) {
    run->set_first_loss(run->first_loss() + workers[i].mean_first_loss() / own);
    run->set_final_loss(run->final_loss() + workers[i].mean_final_loss() / own);
  }
}

void FillTimes(const Metrics& workers, int replicas, proto::Run* run) {
  std::vector<double> step_ms, data, forward, backward, exposed, update;
  for (int step = 0; step < workers[0].step_ms_size(); ++step) {
    const proto::WorkerMetrics& slowest = *std::max_element(
        workers.begin(), workers.end(),
        [step](const auto& a, const auto& b) { return a.step_ms(step) < b.step_ms(step); });
    step_ms.push_back(slowest.step_ms(step));
    data.push_back(slowest.data_ms(step));
    forward.push_back(slowest.forward_ms(step));
    backward.push_back(slowest.backward_ms(step));
    exposed.push_back(slowest.exposed_ms(step));
    update.push_back(slowest.update_ms(step));
  }
  run->set_step_ms_p10(Percentile(step_ms, 0.1));
  run->set_step_ms_p50(Percentile(step_ms, 0.5));
  run->set_step_ms_p90(Percentile(step_ms, 0.9));
  proto::StepBreakdown& breakdown = *run->mutable_breakdown_ms();
  breakdown.set_data(Percentile(data, 0.5));
  breakdown.set_forward(Percentile(forward, 0.5));
  breakdown.set_backward(Percentile(backward, 0.5));
  breakdown.set_exposed(Percentile(exposed, 0.5));
  breakdown.set_update(Percentile(update, 0.5));
  run->set_exposed_ms_p50(breakdown.exposed());
  if (run->step_ms_p50() > 0) {
    run->set_samples_per_s(replicas * SamplesPerStep(workers[0]) / run->step_ms_p50() * 1e3);
  }
}

void FillCpu(const Metrics& workers, const std::vector<proto::ServerMetrics>& servers,
             proto::Run* run) {
  double cpu_ms = 0;
  const auto add = [&cpu_ms](double cpu_seconds, double steps) {
    if (steps > 0) cpu_ms += cpu_seconds * 1e3 / steps;
  };
  for (const proto::WorkerMetrics& worker : workers) {
    add(worker.cpu_seconds(), MeasuredSteps(worker));
  }
  for (const proto::ServerMetrics& server : servers) add(server.cpu_seconds(), server.steps());
  run->set_cpu_ms_per_step(cpu_ms);
}

// Workers that do not wait for each other have each a rate of its own.
void FillStaleness(const Metrics& workers, proto::Run* run) {
  SetCurve(workers, run);
  run->set_steps_per_s(StepsPerSecond(workers));
  if (SpecOf(*run).consistency.bulk()) return;
  double samples_per_s = 0;
  for (const proto::WorkerMetrics& worker : workers) {
    double seconds = 0;
    for (double ms : worker.step_ms()) seconds += ms * 1e-3;
    if (seconds > 0) samples_per_s += worker.step_ms_size() * SamplesPerStep(worker) / seconds;
    run->set_max_staleness(std::max(run->max_staleness(), worker.max_staleness()));
    for (int s = 0; s < worker.staleness_histogram_size(); ++s) {
      if (s == run->staleness_histogram_size()) run->add_staleness_histogram(0);
      run->set_staleness_histogram(s, run->staleness_histogram(s) + worker.staleness_histogram(s));
    }
  }
  run->set_samples_per_s(samples_per_s);
}

bool SameButForWorkers(const proto::Run& a, const proto::Run& b) {
  PlacedJob job = JobOf(a);
  job.workers = b.workers();
  // One worker has the whole model, and as many samples as a replica of several ranks.
  job.arrangement.mesh = b.mesh();
  job.arrangement.schedule = b.pipeline_schedule();
  return SameJob(job, JobOf(b)) && a.library() == b.library() && a.model() == b.model() &&
         a.data() == b.data() && a.threads() == b.threads() && a.device() == b.device() &&
         PrecisionOf(a) == PrecisionOf(b);
}

void SetEfficiencies(google::protobuf::RepeatedPtrField<proto::Run>* runs) {
  for (proto::Run& run : *runs) {
    run.clear_scaling_efficiency();
    for (const proto::Run& one : *runs) {
      if (one.workers() != 1 || one.samples_per_s() <= 0 || !SameButForWorkers(run, one)) continue;
      run.set_scaling_efficiency(run.samples_per_s() / (run.workers() * one.samples_per_s()));
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<Flow>> JobFlows(const Plan& plan, const PlacedJob& job,
                                           const std::vector<double>& weights,
                                           const std::vector<int>& gathers) {
  const bool sharded = plan.slots().parameters > 0;
  const Returned returned =
      job.spec.update == UpdateSite::kOwner ? Returned::kParameters : Returned::kMean;
  switch (job.spec.topology) {
    case Topology::kLocal:
      return std::vector<Flow>();
    case Topology::kRing:
      return sharded ? RingShardedStepFlows(plan, gathers) : RingStepFlows(plan, returned);
    case Topology::kPs:
      break;
  }
  GS_ASSIGN_OR_RETURN(const ShardMap shards,
                      ShardMap::Create(plan, weights.empty() ? PlacedWeights(job) : weights));
  return sharded ? PsShardedStepFlows(plan, shards, gathers) : PsStepFlows(plan, shards, returned);
}

std::vector<WirePayload> PayloadByHost(const std::vector<WirePayload>& processes,
                                       const std::vector<Flow>& flows,
                                       const std::vector<int>& hosts) {
  std::vector<WirePayload> payload(*std::max_element(hosts.begin(), hosts.end()) + 1);
  for (size_t p = 0; p < processes.size(); ++p) {
    payload[hosts[p]].tx_bytes += processes[p].tx_bytes;
    payload[hosts[p]].rx_bytes += processes[p].rx_bytes;
  }
  for (const Flow& flow : flows) {
    if (hosts[flow.from] != hosts[flow.to]) continue;
    payload[hosts[flow.from]].tx_bytes -= static_cast<double>(flow.bytes);
    payload[hosts[flow.to]].rx_bytes -= static_cast<double>(flow.bytes);
  }
  return payload;
}

void SetWire(const std::vector<WirePayload>& nodes, proto::Run* run) {
  WirePayload most;
  double sent = 0;
  for (const WirePayload& node : nodes) {
    most.tx_bytes = std::max(most.tx_bytes, node.tx_bytes);
    most.rx_bytes = std::max(most.rx_bytes, node.rx_bytes);
    sent += node.tx_bytes;
  }
  run->set_wire_tx_bytes_max_node(most.tx_bytes);
  run->set_wire_rx_bytes_max_node(most.rx_bytes);
  run->set_wire_tx_bytes_total(sent);
}

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

std::string NameDevices(const std::vector<std::string>& devices) {
  std::vector<std::string> names;
  for (absl::string_view name : devices) {
    const size_t begin = name.find(" (");
    if (begin != name.npos && absl::ConsumeSuffix(&name, ")")) name.remove_prefix(begin + 2);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.emplace_back(name);
  }
  return absl::StrJoin(names, " + ");
}

absl::StatusOr<proto::Run> AggregateRun(const Metrics& workers,
                                        const std::vector<proto::ServerMetrics>& servers) {
  if (workers.empty() || workers[0].step_ms_size() == 0) {
    return absl::DataLossError("expected metrics with at least one measured step, found none");
  }
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    GS_RETURN_IF_ERROR(CheckRank(workers[0], workers[rank], static_cast<int>(rank)));
  }
  GS_ASSIGN_OR_RETURN(const int replicas, Replicas(workers[0], static_cast<int>(workers.size())));
  proto::Run run;
  FillJob(workers[0], static_cast<int>(workers.size()), static_cast<int>(servers.size()), &run);
  std::vector<std::string> devices;
  for (const proto::WorkerMetrics& worker : workers) devices.push_back(worker.device());
  run.set_device(NameDevices(devices));
  FillLosses(workers, &run);
  FillTimes(workers, replicas, &run);
  SetWire(CountedPayload(workers, servers), &run);
  FillCpu(workers, servers, &run);
  FillStaleness(workers, &run);
  return run;
}

void SetScalingEfficiency(proto::RunRecords* records) {
  SetEfficiencies(records->mutable_runs());
  SetEfficiencies(records->mutable_predictions());
}

}  // namespace gradsync
