#include "worker/seeing.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/group/process_trace.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "proto/step_trace.pb.h"
#include "simulator/cluster.h"
#include "worker/gather_trace.h"
#include "worker/trace/perfetto_file.h"
#include "worker/trace/predicted_step.h"

namespace gradsync {
namespace {

// What the simulator is told of the job; it knows networks only.
absl::optional<Cluster> ClusterOf(const StepTraceOptions& trace, const SyncOptions& options) {
  const JobSpec& job = options.job;
  if (trace.bytes_per_second == 0 || job.link != Link::kGrpc || !job.consistency.bulk() ||
      job.topology == Topology::kLocal) {
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
    std::printf("no predicted step: the simulator knows steps under bsp over --link=grpc\n");
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
