#include "worker/seeing.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/group/process_trace.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/program/byte_sizes.h"
#include "core/program/program_main.h"
#include "proto/step_trace.pb.h"
#include "simulator/cluster.h"
#include "worker/gather_trace.h"
#include "worker/trace/perfetto_file.h"
#include "worker/trace/predicted_step.h"
#include "worker/train/kineto_trace.h"

ABSL_FLAG(std::string, trace, "",
          "file for a trace of some steps of all workers and servers on one clock, which rank 0 "
          "writes and ui.perfetto.dev opens (docs/use/traces.md). A name that ends in .json, with "
          "{rank} for the rank, is for each worker's own trace of LibTorch and CUDA instead, which "
          "tools/trace_check reads; needs --config=cuda");
ABSL_FLAG(std::string, trace_steps, "11:3",
          "steps that --trace records: FIRST-LAST, or FIRST:COUNT; the first step is 1");
ABSL_FLAG(std::string, trace_bandwidth, "",
          "what each host's interface carries, such as 400mbit: the trace also shows the step that "
          "the simulator predicts for such links; empty: it does not");
ABSL_FLAG(std::string, trace_placement, "dedicated",
          "with --trace_bandwidth: where the simulator is told that servers are, dedicated or "
          "colocated (beside the workers)");
ABSL_FLAG(std::string, tensorboard, "",
          "folder for an event file of rank 0's scalars by step, for TensorBoard; empty: none");

namespace gradsync {
namespace {

struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
};

absl::StatusOr<StepRange> StepsFromFlag() {
  const std::string text = absl::GetFlag(FLAGS_trace_steps);
  const bool counts = absl::StrContains(text, ':');
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(counts ? ':' : '-', 1));
  StepRange range;
  int64_t second = 0;
  const bool numbers = absl::SimpleAtoi(parts.first, &range.first) &&
                       absl::SimpleAtoi(parts.second, &second) && range.first >= 1;
  if (!numbers || second < (counts ? 1 : range.first)) {
    return FlagError("trace_steps",
                     "FIRST-LAST, from 1 and not falling, or FIRST:COUNT, both at least 1", text);
  }
  range.last = counts ? range.first + second - 1 : second;
  return range;
}

absl::StatusOr<StepTraceOptions> StepTraceFromFlags(const StepRange& range) {
  StepTraceOptions options;
  options.path = UserPath(absl::GetFlag(FLAGS_trace));
  options.first_step = range.first;
  options.last_step = range.last;
  const std::string bandwidth = absl::GetFlag(FLAGS_trace_bandwidth);
  if (!bandwidth.empty()) {
    const absl::StatusOr<double> rate = ParseBandwidth(bandwidth);
    if (!rate.ok()) return FlagError("trace_bandwidth", "a rate such as 400mbit", bandwidth);
    options.bytes_per_second = *rate;
  }
  const std::string placement = absl::GetFlag(FLAGS_trace_placement);
  if (placement != "dedicated" && placement != "colocated") {
    return FlagError("trace_placement", "dedicated or colocated", placement);
  }
  options.placement = placement == "colocated" ? Placement::kColocated : Placement::kDedicated;
  return options;
}

// What the simulator is told of the job; it knows networks only.
absl::optional<Cluster> ClusterOf(const StepTraceOptions& trace, const SyncOptions& options) {
  const JobSpec& job = options.job;
  if (trace.bytes_per_second == 0 || !job.consistency.bulk() ||
      TraitOf(BackendOf(job)).carries != Carries::kFrames) {
    return absl::nullopt;
  }
  Cluster cluster;
  cluster.ring = job.topology == Topology::kRing;
  cluster.placement = options.servers_in_workers ? Placement::kColocated : trace.placement;
  cluster.servers = static_cast<int>(options.servers.size());
  cluster.returned = job.update == UpdateSite::kOwner ? Returned::kParameters : Returned::kMean;
  cluster.bytes_per_second = trace.bytes_per_second;
  (cluster.ring ? cluster.ring_connections : cluster.ps_connections) = ConnectionsOf(job);
  return cluster;
}

void Append(std::vector<proto::ProcessTrace> from, std::vector<proto::ProcessTrace>* to) {
  for (proto::ProcessTrace& trace : from) to->push_back(std::move(trace));
}

}  // namespace

bool TracesEachRank() {
  const std::string path = absl::GetFlag(FLAGS_trace);
  return path.empty() || absl::EndsWith(path, ".json");
}

void AddTraceFlags(FlagTexts* flags) {
  const bool together = !TracesEachRank();
  (*flags)["trace"] = together ? absl::GetFlag(FLAGS_trace) : "";
  (*flags)["trace_steps"] = together ? absl::GetFlag(FLAGS_trace_steps) : "";
}

absl::StatusOr<SeeingOptions> SeeingFromFlags(int rank) {
  SeeingOptions options;
  options.tensorboard = UserPath(absl::GetFlag(FLAGS_tensorboard));
  if (absl::GetFlag(FLAGS_trace).empty()) return options;
  GS_ASSIGN_OR_RETURN(const StepRange range, StepsFromFlag());
  if (!TracesEachRank()) {
    GS_ASSIGN_OR_RETURN(options.trace, StepTraceFromFlags(range));
    return options;
  }
  GS_ASSIGN_OR_RETURN(
      options.kineto,
      ParseTrace(UserPath(absl::GetFlag(FLAGS_trace)),
                 absl::StrCat(range.first, ":", range.last - range.first + 1), rank));
  return options;
}

std::string FormatTimeLeft(absl::Duration left) {
  const int64_t seconds = absl::ToInt64Seconds(left + absl::Milliseconds(500));
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min ", seconds % 60, " s");
  return absl::StrCat(seconds / 3600, " h ", seconds / 60 % 60, " min");
}

std::string Progress::Line(const StepReport& report, MonotonicTime now) {
  const int64_t step = report.step;
  if (options_.every == 0) return "";
  if (first_step_ == 0) {
    first_step_ = step;
    last_step_ = step - 1;
  }
  if (report.epoch != epoch_) correct_ = samples_ = 0;
  epoch_ = report.epoch;
  correct_ += report.correct;
  samples_ += report.samples;
  if (step % options_.every != 0 && step != first_step_ && step != report.steps) return "";
  std::string line = absl::StrFormat("step %d/%d", step, report.steps);
  if (const int64_t epoch = options_.steps_per_epoch; epoch > 0) {
    absl::StrAppendFormat(&line, " epoch %d/%d", (step - 1) / epoch + 1,
                          (report.steps - 1) / epoch + 1);
  }
  absl::StrAppendFormat(&line, " loss %.4f", report.loss);
  if (samples_ > 0) {
    absl::StrAppendFormat(&line, " accuracy %.1f %%",
                          100 * static_cast<double>(correct_) / static_cast<double>(samples_));
  }
  const double seconds = absl::ToDoubleSeconds(now - last_time_);
  if (seconds > 0) {
    const int64_t samples = (step - last_step_) * options_.samples_per_step;
    absl::StrAppendFormat(&line, " %.0f samples/s", static_cast<double>(samples) / seconds);
  }
  absl::StrAppendFormat(&line, " data %.1f exposed %.1f step %.1f ms",
                        absl::ToDoubleMilliseconds(report.times.data),
                        absl::ToDoubleMilliseconds(report.times.exposed),
                        absl::ToDoubleMilliseconds(report.times.total));
  if (step < report.steps) {
    const absl::Duration left = (now - begin_) / (step - first_step_ + 1) * (report.steps - step);
    absl::StrAppend(&line, ", ", FormatTimeLeft(left), " left");
  }
  last_time_ = now;
  last_step_ = step;
  return line;
}

absl::StatusOr<std::unique_ptr<Seeing>> Seeing::Create(const SeeingOptions& options, int rank) {
  std::unique_ptr<Seeing> seeing = absl::WrapUnique(new Seeing(options, rank));
  const StepTraceOptions& trace = options.trace;
  if (trace.wanted()) {
    if (rank == 0) GS_RETURN_IF_ERROR(CheckWritable("trace", trace.path));
    seeing->recorder_ = std::make_shared<TraceRecorder>(trace.first_step, trace.last_step);
  }
  if (rank == 0 && !options.tensorboard.empty()) {
    auto file = TensorboardFile::Create(options.tensorboard);
    if (!file.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tensorboard: expected a folder that can be written, found ",
                       options.tensorboard, ": ", file.status().message()));
    }
    seeing->tensorboard_ = *std::move(file);
  }
  return seeing;
}

void Seeing::Begin(const ProgressOptions& progress, int64_t first_step) {
  progress_options_ = progress;
  progress_.emplace(progress, MonotonicTime::Now());
  if (tensorboard_ != nullptr) failed_.Update(tensorboard_->Begin(first_step));
}

void Seeing::OnStep(const StepReport& report) {
  const std::string line = progress_->Line(report, MonotonicTime::Now());
  if (!line.empty()) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  if (tensorboard_ != nullptr) AddScalars(report);
}

void Seeing::AddScalars(const StepReport& report) {
  const double seconds = absl::ToDoubleSeconds(report.times.total);
  const double samples = static_cast<double>(progress_options_.samples_per_step);
  const double own = static_cast<double>(report.samples);
  failed_.Update(tensorboard_->Add(
      report.step, {{"loss", report.loss},
                    {"accuracy", own > 0 ? static_cast<double>(report.correct) / own : 0},
                    {"lr", report.lr},
                    {"exposed_ms", absl::ToDoubleMilliseconds(report.times.exposed)},
                    {"step_ms", absl::ToDoubleMilliseconds(report.times.total)},
                    {"data_ms", absl::ToDoubleMilliseconds(report.times.data)},
                    {"samples_per_second", seconds > 0 ? samples / seconds : 0}}));
}

void Seeing::OnEvaluation(const EvaluationPoint& point) {
  if (tensorboard_ == nullptr) return;
  const Evaluation& judged = point.tested.judged();
  failed_.Update(tensorboard_->Add(
      point.step, {{"test_accuracy", judged.accuracy}, {"test_loss", judged.loss}}));
}

absl::Status Seeing::Finish(const Member& member, const Plan& plan, const TrainingResult& result) {
  const bool known =
      !result.evaluations.empty() && result.evaluations.back().step == result.last_step;
  if (result.test_samples > 0 && !known) {
    Evaluations tested;
    tested.weights = {result.test_loss, result.test_accuracy, result.test_samples};
    OnEvaluation({result.last_step, absl::ZeroDuration(), tested});
  }
  if (recorder_ != nullptr) failed_.Update(WriteTrace(member, plan));
  return failed_;
}

absl::Status Seeing::WriteTrace(const Member& member, const Plan& plan) {
  WorkerGroup group = member.group();
  if (member.options().job.topology == Topology::kLocal) group.world_size = 1;
  std::vector<proto::ProcessTrace> traces;
  if (group.rank < group.world_size) {
    GS_ASSIGN_OR_RETURN(traces, GatherTraces(group, ClockName(), Deadline::In(group.timeout)));
  }
  if (rank_ != 0) return absl::OkStatus();
  int64_t dropped = 0;
  for (const proto::ProcessTrace& trace : traces) dropped += trace.dropped();
  const absl::optional<Cluster> cluster = ClusterOf(options_.trace, member.options());
  if (cluster.has_value()) {
    // A job that was resumed behind this step, or told to end before it, has none to compare with.
    absl::StatusOr<std::vector<proto::ProcessTrace>> predicted =
        PredictStep(plan, *cluster, traces, options_.trace.first_step);
    if (predicted.ok()) {
      Append(*std::move(predicted), &traces);
    } else {
      std::printf("no predicted step: %s\n", std::string(predicted.status().message()).c_str());
    }
  } else if (options_.trace.bytes_per_second > 0) {
    std::printf(
        "no predicted step: the simulator knows steps under bsp over --link=grpc and tcp\n");
  }
  GS_RETURN_IF_ERROR(WriteFileAtomically(options_.trace.path, PerfettoFile(traces)));
  std::printf("trace of steps %ld to %ld: %s\n", static_cast<long>(options_.trace.first_step),
              static_cast<long>(options_.trace.last_step), options_.trace.path.c_str());
  if (dropped > 0) {
    std::printf("%ld events had no room in the trace\n", static_cast<long>(dropped));
  }
  std::fflush(stdout);
  return absl::OkStatus();
}

}  // namespace gradsync
