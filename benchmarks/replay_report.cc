#include "benchmarks/replay_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "benchmarks/aggregate.h"
#include "benchmarks/byte_sizes.h"

namespace gradsync {
namespace {

constexpr double kMostLate = 0.02;  // of the step
constexpr double kMostBusy = 0.7;   // of all cores

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
  if (!run.bandwidth().empty() && run.cpu_share() > kMostBusy) {
    return absl::StrFormat(
        "%.0f %% of this machine's cores were busy, which is above %.0f %%: they, and not the "
        "emulated network, may have been the limit",
        100 * run.cpu_share(), 100 * kMostBusy);
  }
  return "";
}

std::string Ms(double ms) { return absl::StrFormat(ms < 100 ? "%.2f" : "%.1f", ms); }

std::string Percent(double share) { return absl::StrFormat("%.0f%%", 100 * share); }

constexpr char kLine[] =
    "%-12s  %-8s %-5s %-6s %-9s %7s %7s %9s %9s %7s  %8s %8s %8s  %8s %8s  %11s  %5s %6s  %9s %7s  "
    "%6s\n";

}  // namespace

absl::StatusOr<proto::Run> SummarizeReplay(const ReplayCase& replay,
                                           const std::vector<proto::WorkerMetrics>& workers,
                                           const std::vector<proto::ServerMetrics>& servers) {
  GS_ASSIGN_OR_RETURN(proto::Run run, AggregateRun(workers, servers));
  run.set_profile(replay.profile_name);
  run.set_compute_scale(replay.compute_scale);
  run.set_bandwidth(replay.bandwidth);
  run.set_placement(replay.placement);
  for (const proto::WorkerMetrics& worker : workers) run.set_wrong(run.wrong() + worker.wrong());
  run.set_cpu_share(workers[0].cpu_share());
  run.set_late_ms_p90(LateMs(workers));
  const double compute_us =
      replay.profile.forward_us() + replay.profile.backward_us() + replay.profile.update_us();
  run.set_scaling_efficiency(1e-3 * replay.compute_scale * compute_us / run.step_ms_p50());
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
  std::string line = absl::StrFormat(
      kLine, run.profile(), run.topology(), run.link().empty() ? "-" : run.link(), run.update(),
      ps ? run.placement() : "-", absl::StrCat(run.workers()),
      ps ? absl::StrCat(run.servers()) : "-", run.bandwidth().empty() ? "-" : run.bandwidth(),
      FormatBytes(static_cast<int64_t>(run.bucket_bytes())), absl::StrCat(run.compute_scale()),
      Ms(run.step_ms_p10()), Ms(run.step_ms_p50()), Ms(run.step_ms_p90()), Ms(run.exposed_ms_p50()),
      Percent(run.scaling_efficiency()),
      absl::StrFormat("%.0f", std::max(run.wire_tx_bytes_max_node(), run.wire_rx_bytes_max_node())),
      Percent(run.cpu_share()), Ms(run.late_ms_p90()),
      predicted == nullptr ? "-" : Ms(predicted->step_ms_p50()),
      predicted == nullptr
          ? "-"
          : absl::StrFormat("%+.1f%%", 100 * (predicted->step_ms_p50() / run.step_ms_p50() - 1)),
      absl::StrFormat("%.0f", run.wrong()));
  if (!run.compression().empty() && run.compression() != "none") {
    absl::StrAppend(&line, "  compression: ", run.compression(), "\n");
  }
  if (!run.straggler().empty()) absl::StrAppend(&line, "  straggler: ", run.straggler(), "\n");
  if (!run.invalid().empty()) absl::StrAppend(&line, "  INVALID: ", run.invalid(), "\n");
  return line;
}

}  // namespace gradsync
