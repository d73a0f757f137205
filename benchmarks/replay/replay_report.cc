#include "benchmarks/replay/replay_report.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/byte_sizes.h"
#include "base/status_macros.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/curve_report.h"
#include "benchmarks/records/payload.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/table.h"

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

absl::Status SetHostWire(const ReplayCase& replay, const std::vector<proto::WorkerMetrics>& workers,
                         const std::vector<proto::ServerMetrics>& servers, proto::Run* run) {
  if (replay.job.bandwidth.empty() || replay.job.spec.topology == Topology::kLocal) {
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(const Plan plan,
                      ReplayPlan(replay.spec, replay.job.spec, replay.job.workers));
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, JobFlows(plan, replay.job));
  SetWire(PayloadByHost(CountedPayload(workers, servers), flows, HostsOf(replay.job)), run);
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

constexpr char kLine[] =
    "%-12s  %-8s %-5s %-6s %-9s %7s %7s %9s %9s %7s  %8s %8s %8s  %8s %8s  %11s  %5s %6s  %9s %7s  "
    "%6s\n";

}  // namespace

absl::StatusOr<proto::Run> SummarizeReplay(const ReplayCase& replay,
                                           const std::vector<proto::WorkerMetrics>& workers,
                                           const std::vector<proto::ServerMetrics>& servers) {
  GS_ASSIGN_OR_RETURN(proto::Run run, AggregateRun(workers, servers));
  run.set_profile(replay.profile_name);
  run.set_global_batch_size(static_cast<double>(replay.global_batch_size));
  run.set_compute_scale(replay.spec.compute_scale());
  SetPlaced(replay.job, &run);
  GS_RETURN_IF_ERROR(SetHostWire(replay, workers, servers, &run));
  for (const proto::WorkerMetrics& worker : workers) run.set_wrong(run.wrong() + worker.wrong());
  run.set_cpu_share(workers[0].cpu_share());
  run.set_late_ms_p90(LateMs(workers));
  const double step_us =
      replay.job.spec.consistency.bulk() ? 1e3 * run.step_ms_p50() : 1e6 / run.steps_per_s();
  const int parts = replay.global_batch_size > 0 ? replay.job.workers : 1;
  run.set_scaling_efficiency(replay.spec.compute_scale() * replay.one_worker_us /
                             (parts * step_us));
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
  if (compressed) {
    absl::StrAppend(&line, "  compression: ", run.compression(), "\n");
  }
  if (!run.straggler().empty()) absl::StrAppend(&line, "  straggler: ", run.straggler(), "\n");
  if (!Bulk(run) || !run.straggler().empty()) absl::StrAppend(&line, GroupLine(run, predicted));
  if (!run.invalid().empty()) absl::StrAppend(&line, "  INVALID: ", run.invalid(), "\n");
  return line;
}

}  // namespace gradsync
