#include "benchmarks/replay/replay_report.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/profiles/step_profile.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/curve.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"
#include "benchmarks/replay/mesh_cases.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/plan/shard_map.h"
#include "core/plan/step_order.h"
#include "core/plan/wire_traffic.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr double kMostLate = 0.02;  // of the step

// p90 over steps of the rank that was latest.
double LateMs(const std::vector<proto::WorkerMetrics>& workers) {
  std::vector<double> late(workers[0].late_ms_size());
  for (const proto::WorkerMetrics& worker : workers) {
    for (int i = 0; i < std::min(worker.late_ms_size(), workers[0].late_ms_size()); ++i) {
      late[i] = std::max(late[i], worker.late_ms(i));
    }
  }
  return Percentile(std::move(late), 0.9);
}

std::string WhyInvalid(const proto::Run& run) {
  if (run.late_ms_p90() > kMostLate * run.step_ms_p50()) {
    return absl::StrFormat(
        "buckets were launched up to %.1f ms late (p90): this machine could not "
        "keep the recorded times",
        run.late_ms_p90());
  }
  return run.bandwidth().empty() ? "" : InvalidByCpu(run.cpu_share());
}

// Which stage or slice a rank has; of the two dimensions one is 1.
int PartOf(const Mesh& mesh, int rank) {
  return mesh.Coordinate(rank, MeshDimension::kPipeline) +
         mesh.Coordinate(rank, MeshDimension::kTensor);
}

// What the ranks and servers of a stage or slice, of which there are `parts`, exchange, by their
// numbers in the job.
absl::Status AddPartFlows(const Plan& plan, const ReplayCase& replay, const Mesh& mesh, int part,
                          int parts, std::vector<Flow>* flows) {
  std::vector<int> processes;
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    if (PartOf(mesh, rank) == part) processes.push_back(rank);
  }
  PlacedJob own = replay.job;
  own.workers = static_cast<int>(processes.size());
  own.servers = 0;
  for (int server = part; server < replay.job.servers; server += parts) {
    processes.push_back(mesh.world_size() + server);
    ++own.servers;
  }
  if (own.servers > 0) own.placement = Placement::kDedicated;
  GS_ASSIGN_OR_RETURN(std::vector<Flow> some, JobFlows(plan, own));
  for (Flow& flow : some) {
    flow.from = processes[flow.from];
    flow.to = processes[flow.to];
    flows->push_back(flow);
  }
  return absl::OkStatus();
}

// Of a mesh: what is exchanged, and what passes between stages or slices, each of which is a host.
absl::Status SetMeshWire(const ReplayCase& replay, const Mesh& mesh,
                         const std::vector<RecordedStage>& stages,
                         const std::vector<proto::WorkerMetrics>& workers,
                         const std::vector<proto::ServerMetrics>& servers, proto::Run* run) {
  std::vector<Flow> flows;
  const int parts = mesh.world_size() / mesh.replicas();
  for (int part = 0; part < parts; ++part) {
    // All slices have the plan of the one that was recorded.
    const Plan& plan = stages[mesh.has_slices() ? 0 : part].plan;
    GS_RETURN_IF_ERROR(AddPartFlows(plan, replay, mesh, part, parts, &flows));
  }
  SetWire(PayloadByHost(CountedPayload(workers, servers), flows, HostsOf(replay.job)), run);
  return absl::OkStatus();
}

// What AggregateRun() does not know of a mesh.
absl::Status SummarizeMesh(const ReplayCase& replay,
                           const std::vector<proto::WorkerMetrics>& workers,
                           const std::vector<proto::ServerMetrics>& servers, proto::Run* run) {
  const proto::RankSpec::Replay& spec = replay.spec;
  GS_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Parse(spec.mesh(), replay.job.workers));
  GS_ASSIGN_OR_RETURN(const std::vector<RecordedStage> stages, StagesOfSpec(spec, mesh));
  run->set_mesh(spec.mesh());
  run->set_pipeline_schedule(spec.pipeline_schedule());
  run->set_micro_batches(static_cast<int>(spec.micro_batches()));
  run->set_split(spec.split());
  run->set_bytes(0);
  for (const RecordedStage& stage : stages) {
    run->set_bytes(run->bytes() + static_cast<double>(stage.plan.total_bytes()));
  }
  const double step_us = 1e3 * run->step_ms_p50();
  const auto samples = static_cast<double>(spec.step_samples());
  run->set_samples_per_s(mesh.replicas() * samples / step_us * 1e6);
  const int parts = mesh.world_size() / mesh.replicas();  // stages or slices, of one replica
  run->set_scaling_efficiency(spec.compute_scale() * replay.one_worker_us / (parts * step_us));
  return SetMeshWire(replay, mesh, stages, workers, servers, run);
}

absl::Status SetHostWire(const ReplayCase& replay, const std::vector<proto::WorkerMetrics>& workers,
                         const std::vector<proto::ServerMetrics>& servers, proto::Run* run) {
  if (replay.job.bandwidth.empty() || replay.job.spec.topology == Topology::kLocal) {
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(const Plan plan,
                      ReplayPlan(replay.spec, replay.job.spec, replay.job.workers));
  std::vector<int> gathers;
  if (plan.slots().parameters > 0) {
    GS_ASSIGN_OR_RETURN(const ComputedStep step, ComputedStepUs(replay.spec.profile(), plan));
    gathers = GathersOfStep(plan, step.units);
  }
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, JobFlows(plan, replay.job, {}, gathers));
  SetWire(PayloadByHost(CountedPayload(workers, servers), flows, HostsOf(replay.job)), run);
  return absl::OkStatus();
}

// What servers sent for gathers outside of steps, which they cannot tell from others.
absl::Status TakeOutExtraGathers(const ReplayCase& replay,
                                 std::vector<proto::ServerMetrics>* servers) {
  if (replay.spec.zero() < 3 || servers->empty()) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const Plan plan,
                      ReplayPlan(replay.spec, replay.job.spec, replay.job.workers));
  GS_ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(plan, PlacedWeights(replay.job)));
  for (size_t s = 0; s < servers->size(); ++s) {
    proto::ServerMetrics& server = (*servers)[s];
    const double steps = std::max(1.0, server.steps());
    const double extra =
        static_cast<double>(kExtraGathers * replay.job.workers * shards.bytes(static_cast<int>(s)));
    server.set_wire_tx_bytes_per_step((server.wire_tx_bytes_per_step() * steps - extra) / steps);
  }
  return absl::OkStatus();
}

std::string Error(double predicted, double measured) {
  return absl::StrFormat("%+.1f%%", 100 * (predicted / measured - 1));
}

bool Bulk(const proto::Run& run) { return SpecOf(run).consistency.bulk(); }

// What a step of the slowest rank does not say.
std::string GroupLine(const proto::Run& run, const proto::Run* predicted) {
  std::string line = absl::StrFormat("  group: %s, %.3f steps per s",
                                     ConsistencyName(SpecOf(run).consistency), run.steps_per_s());
  if (predicted != nullptr) {
    absl::StrAppend(&line, absl::StrFormat(", predicted %.3f (%s)", predicted->steps_per_s(),
                                           Error(predicted->steps_per_s(), run.steps_per_s())));
  }
  if (!Bulk(run)) {
    absl::StrAppend(&line,
                    "; % of steps that lack 0, 1, 2, ... of the slowest: ", FormatStaleness(run));
  }
  return absl::StrCat(line, "\n");
}

std::string MeshLine(const proto::Run& run) {
  return absl::StrCat("  ", run.mesh(), ", ", run.pipeline_schedule(), ", ", run.micro_batches(),
                      " x ", Count(run.batch_size(), "sample"),
                      run.split().empty() ? "" : absl::StrCat(", cut before ", run.split()),
                      absl::StrFormat(", %.1f samples per s\n", run.samples_per_s()));
}

constexpr char kLine[] =
    "%-12s  %-8s %-5s %-6s %-9s %7s %7s %9s %9s %7s  %8s %8s %8s  %8s %8s  %11s  %5s %6s  %9s %7s  "
    "%6s\n";

}  // namespace

absl::StatusOr<proto::Run> SummarizeReplay(const ReplayCase& replay,
                                           const std::vector<proto::WorkerMetrics>& workers,
                                           std::vector<proto::ServerMetrics> servers) {
  GS_RETURN_IF_ERROR(TakeOutExtraGathers(replay, &servers));
  GS_ASSIGN_OR_RETURN(proto::Run run, AggregateRun(workers, servers));
  run.set_profile(replay.profile_name);
  run.set_global_batch_size(static_cast<double>(replay.global_batch_size));
  run.set_compute_scale(replay.spec.compute_scale());
  SetPlaced(replay.job, &run);
  const bool mesh = !replay.spec.mesh().empty();
  if (!mesh) GS_RETURN_IF_ERROR(SetHostWire(replay, workers, servers, &run));
  for (const proto::WorkerMetrics& worker : workers) run.set_wrong(run.wrong() + worker.wrong());
  run.set_cpu_share(workers[0].cpu_share());
  run.set_late_ms_p90(LateMs(workers));
  const double step_us =
      replay.job.spec.consistency.bulk() ? 1e3 * run.step_ms_p50() : 1e6 / run.steps_per_s();
  const int parts = replay.global_batch_size > 0 ? replay.job.workers : 1;
  run.set_scaling_efficiency(replay.spec.compute_scale() * replay.one_worker_us /
                             (parts * step_us));
  if (mesh) GS_RETURN_IF_ERROR(SummarizeMesh(replay, workers, servers, &run));
  run.set_invalid(WhyInvalid(run));
  return run;
}

std::string ReplayHead() {
  return absl::StrCat(
      absl::StrFormat(kLine, "profile", "topology", "link", "update", "placement", "workers",
                      "servers", "bandwidth", "buckets", "compute", "step ms", "", "", "exposed",
                      "effi-", "wire bytes", "cpu", "late", "predicted", "error", "#wrong"),
      absl::StrFormat(kLine, "", "", "", "", "", "", "", "", "of", "times", "p10", "p50", "p90",
                      "ms", "ciency", "max host", "share", "ms p90", "step ms", "", ""));
}

std::string ReplayLine(const proto::Run& run, const proto::Run* predicted) {
  const bool ps = run.servers() > 0;
  const bool compressed = SpecOf(run).codec.compresses();
  // Under a random straggler the median step is not the mean one, which the group's rate gives.
  const bool typical =
      predicted != nullptr && Bulk(run) && !absl::StartsWith(run.straggler(), "random");
  std::string line = absl::StrFormat(
      kLine, run.profile(), run.topology(), run.link().empty() ? "-" : run.link(), run.update(),
      ps ? run.placement() : "-", absl::StrCat(run.workers()),
      ps ? absl::StrCat(run.servers()) : "-", run.bandwidth().empty() ? "-" : run.bandwidth(),
      FormatBytes(static_cast<int64_t>(run.bucket_bytes())), absl::StrCat(run.compute_scale()),
      Ms(run.step_ms_p10()), Ms(run.step_ms_p50()), Ms(run.step_ms_p90()), Ms(run.exposed_ms_p50()),
      Percent(run.scaling_efficiency()),
      absl::StrFormat("%.0f", std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node())),
      Percent(run.cpu_share()), Ms(run.late_ms_p90()), typical ? Ms(predicted->step_ms_p50()) : "-",
      typical ? Error(predicted->step_ms_p50(), run.step_ms_p50()) : "-",
      compressed ? "-" : absl::StrFormat("%.0f", run.wrong()));
  if (!run.mesh().empty()) absl::StrAppend(&line, MeshLine(run));
  if (compressed) {
    absl::StrAppend(&line, "  compression: ", run.compression(), "\n");
  }
  if (run.zero() > 0) absl::StrAppend(&line, "  zero: ", run.zero(), "\n");
  if (!run.straggler().empty()) absl::StrAppend(&line, "  straggler: ", run.straggler(), "\n");
  if (!Bulk(run) || !run.straggler().empty()) absl::StrAppend(&line, GroupLine(run, predicted));
  if (!run.invalid().empty()) absl::StrAppend(&line, "  INVALID: ", run.invalid(), "\n");
  return line;
}

}  // namespace gradsync
