#include "benchmarks/comparison/replica_comparison.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/comparison/compare_rounds.h"
#include "benchmarks/comparison/decision.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/terminal.h"
#include "core/base/status_macros.h"
#include "worker/models/model_options.h"

namespace gradsync {
namespace {

using Kind = ReplicaJob::Kind;
using Metrics = std::vector<proto::WorkerMetrics>;

// More do not fit into one machine's memory with any model for which the comparison means anything.
constexpr int kMostParts = 64;

constexpr Kind kKinds[] = {Kind::kAccumulate, Kind::kDataParallel, Kind::kRing};

template <typename Values>
double Median(const Values& values) {
  return Percentile({values.begin(), values.end()}, 0.5);
}

double Sum(const google::protobuf::RepeatedField<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

// Of rank 0, of the time in which ranks compute and update.
double ShareOfRank0(const Metrics& workers) {
  std::vector<double> busy;
  double all = 0;
  for (const proto::WorkerMetrics& worker : workers) {
    busy.push_back(Sum(worker.forward_ms()) + Sum(worker.backward_ms()) + Sum(worker.update_ms()));
    all += busy.back();
  }
  return all > 0 ? busy[0] / all : 0;
}

std::string Mega(double bytes) { return absl::StrFormat("%.1f", 1e-6 * bytes); }

}  // namespace

absl::StatusOr<std::vector<ReplicaJob>> ListReplicaJobs(const ReplicaComparison& comparison) {
  GS_RETURN_IF_ERROR(CheckNames("model", {comparison.model}, ModelNames()));
  GS_RETURN_IF_ERROR(CheckAtLeast("batch_size", 1, comparison.batch_size));
  GS_RETURN_IF_ERROR(CheckAtLeast("threads", 1, comparison.threads));
  GS_RETURN_IF_ERROR(CheckAtLeast("rounds", 1, comparison.rounds));
  GS_RETURN_IF_ERROR(CheckAtLeast("warmup_steps", 0, comparison.warmup_steps));
  GS_RETURN_IF_ERROR(CheckAtLeast("steps", comparison.warmup_steps + 1, comparison.steps));
  GS_RETURN_IF_ERROR(CheckTimeout(comparison.timeout));
  GS_ASSIGN_OR_RETURN(const std::vector<int> counts,
                      ParseCounts("replicas", comparison.replicas, kMostParts));
  std::vector<ReplicaJob> jobs;
  for (int parts : std::set<int>(counts.begin(), counts.end())) {
    GS_RETURN_IF_ERROR(CheckAtLeast("replicas", 2, parts));
    for (Kind kind : kKinds) jobs.push_back({kind, parts});
  }
  return jobs;
}

std::vector<std::string> FlagsOf(const ReplicaComparison& comparison, const ReplicaJob& job) {
  const bool replicas = job.kind == Kind::kDataParallel;
  const int in_one = replicas ? job.parts : 1;
  std::vector<std::string> flags = {
      absl::StrCat("--model=", comparison.model),
      absl::StrCat("--data=", comparison.data),
      absl::StrCat("--batch_size=", comparison.batch_size * in_one),
      absl::StrCat("--threads=", comparison.threads * in_one),
      absl::StrCat("--steps=", comparison.steps),
      absl::StrCat("--warmup_steps=", comparison.warmup_steps),
      absl::StrCat("--seed=", comparison.seed),
      absl::StrCat("--timeout=", absl::FormatDuration(comparison.timeout)),
      "--log_every=0",
  };
  if (job.kind == Kind::kRing) {
    flags.insert(flags.end(), {"--topology=ring", "--link=shm"});
  } else {
    flags.push_back("--topology=local");
    flags.push_back(absl::StrCat(replicas ? "--data_parallel=" : "--accumulate=", job.parts));
  }
  return flags;
}

std::string NameOf(const ReplicaJob& job) {
  switch (job.kind) {
    case Kind::kAccumulate:
      return absl::StrCat("1 process, ", job.parts, " parts in turn");
    case Kind::kDataParallel:
      return absl::StrCat(job.parts, " replicas in one process");
    case Kind::kRing:
      return absl::StrCat("ring of ", job.parts, " ranks");
  }
  return "";
}

absl::StatusOr<proto::Run> ReplicaRun(const ReplicaJob& job, const Metrics& workers) {
  GS_ASSIGN_OR_RETURN(proto::Run run, AggregateRun(workers, {}));
  const proto::WorkerMetrics& first = workers[0];
  const int replicas = job.kind == Kind::kDataParallel ? job.parts : 1;
  const int accumulate = job.kind == Kind::kAccumulate ? job.parts : 1;
  if (run.workers() != job.workers() || first.data_parallel() != replicas ||
      first.accumulate() != accumulate) {
    return absl::DataLossError(absl::StrCat(
        "metrics of ", NameOf(job), ": found ", run.workers(), " workers with ",
        first.data_parallel(), " replicas each and ", first.accumulate(), " batches in a step"));
  }
  run.set_data_parallel(replicas);
  run.set_accumulate(accumulate);
  run.set_device0_share(ShareOfRank0(workers));
  run.set_device0_tx_bytes(first.wire_tx_bytes_per_step());
  run.set_device0_rx_bytes(first.wire_rx_bytes_per_step());
  if (replicas == 1) return run;
  run.set_replicate_ms_p50(Median(first.replicate_ms()));
  run.set_scatter_ms_p50(Median(first.scatter_ms()));
  run.set_apply_ms_p50(Median(first.apply_ms()));
  run.set_gather_ms_p50(Median(first.gather_ms()));
  run.set_reduce_ms_p50(Median(first.reduce_ms()));
  run.set_device0_share(first.device0_share());
  run.set_device0_tx_bytes(first.device0_tx_bytes_per_step());
  run.set_device0_rx_bytes(first.device0_rx_bytes_per_step());
  return run;
}

std::string ReplicaTable(const std::vector<ReplicaJob>& jobs, const std::vector<proto::Run>& runs) {
  const std::vector<Column> columns = {{"", Align::kLeft},
                                       {"samples/s"},
                                       {"step ms"},
                                       {"data", Align::kRight, /*bar_before=*/true},
                                       {"replicate"},
                                       {"scatter"},
                                       {"forward+\nbackward"},
                                       {"gather"},
                                       {"reduce"},
                                       {"exposed"},
                                       {"update"},
                                       {"device 0:\nwork", Align::kRight, /*bar_before=*/true},
                                       {"sends\nMB"},
                                       {"receives\nMB"}};
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < runs.size(); ++i) {
    const proto::Run& run = runs[i];
    const proto::StepBreakdown& parts = run.breakdown_ms();
    const bool replicas = jobs[i].kind == Kind::kDataParallel;
    const auto of_replicas = [&](double ms) { return replicas ? Ms(ms) : std::string("-"); };
    rows.push_back({NameOf(jobs[i]), FormatRate(run), Ms(run.step_ms_p50()), Ms(parts.data()),
                    of_replicas(run.replicate_ms_p50()), of_replicas(run.scatter_ms_p50()),
                    Ms(replicas ? run.apply_ms_p50() : parts.forward() + parts.backward()),
                    of_replicas(run.gather_ms_p50()), of_replicas(run.reduce_ms_p50()),
                    Ms(parts.exposed()), Ms(parts.update()), Percent(run.device0_share()),
                    Mega(run.device0_tx_bytes()), Mega(run.device0_rx_bytes())});
  }
  return FormatTable(columns, rows);
}

ReplicaVerdict JudgeReplicas(const std::vector<ReplicaJob>& jobs,
                             const std::vector<proto::Run>& runs) {
  ReplicaVerdict verdict;
  verdict.bits_agree = true;
  const auto find = [&](Kind kind, int parts) {
    const auto same = [&](const ReplicaJob& job) { return job.kind == kind && job.parts == parts; };
    const auto found = std::find_if(jobs.begin(), jobs.end(), same);
    const size_t at = static_cast<size_t>(found - jobs.begin());
    return at < runs.size() ? &runs[at] : nullptr;
  };
  const auto differ = [&](absl::string_view name, absl::string_view what) {
    verdict.bits_agree = false;
    absl::StrAppend(&verdict.text, "  bits: ", name, " ended with other parameters ", what, "\n");
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    for (const std::string& hash : runs[i].round_params_sha256()) {
      if (hash == runs[i].params_sha256()) continue;
      differ(NameOf(jobs[i]), "in another round");
      break;
    }
    if (jobs[i].kind != Kind::kDataParallel) continue;
    const proto::Run* const in_turn = find(Kind::kAccumulate, jobs[i].parts);
    if (in_turn != nullptr && in_turn->params_sha256() != runs[i].params_sha256()) {
      differ(NameOf(jobs[i]), "than one process with the parts in turn");
    }
    const proto::Run* const ring = find(Kind::kRing, jobs[i].parts);
    if (ring == nullptr) continue;
    const Decision decision =
        Decide(RatiosOverRounds(*ring, runs[i]), static_cast<int>(runs.size()));
    absl::StrAppendFormat(
        &verdict.text, "  speed: %s: %.3f times (%.3f to %.3f) the samples/s\n",
        Describe(decision, absl::StrCat("a ring of ", jobs[i].parts, " ranks"), NameOf(jobs[i])),
        decision.ratio, decision.low, decision.high);
  }
  if (verdict.bits_agree) {
    absl::StrAppend(&verdict.text,
                    "  bits: replicas ended with those of one process with the parts in turn, and "
                    "each job with the same in all rounds\n");
  }
  return verdict;
}

}  // namespace gradsync
