#include "train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <limits>
#include <thread>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/strings/str_cat.h"
#include "base/deadline.h"
#include "base/monotonic_time.h"
#include "base/status_macros.h"
#include "data/data_loader.h"
#include "data/loader_threads.h"
#include "ddp/distributed_data_parallel.h"
#include "models/loss.h"
#include "sync/device_buckets.h"
#include "train/batch_upload.h"
#include "train/check_finite.h"
#include "train/checkpointer.h"
#include "train/compute_threads.h"
#include "train/evaluate.h"
#include "train/forward.h"
#include "train/job_inputs.h"
#include "train/job_state.h"
#include "train/kept_models.h"
#include "train/loss_reader.h"
#include "train/loss_scaler.h"
#include "train/precision.h"
#include "train/slow_down.h"
#include "train/step_graph.h"
#include "train/training_clock.h"

namespace gradsync {
namespace {

absl::Duration ProcessCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

// What is spent between steps, on none of them.
struct Unmeasured {
  absl::Duration time;
  absl::Duration cpu;
  WireStats wire;
};

class TrainerImpl : public Trainer {
 public:
  TrainerImpl(const TrainerOptions& options, int rank, int world_size, JobInputs inputs)
      : options_(options),
        rank_(rank),
        loader_threads_(
            ChooseLoaderThreads(options.loader_threads, options.gpu != nullptr,
                                static_cast<int>(std::thread::hardware_concurrency()),
                                options.ranks_on_host > 0 ? options.ranks_on_host : world_size)),
        device_(TensorDevice(options.gpu.get())),
        inputs_(std::move(inputs)),
        clock_(options.gpu) {}

  absl::Status Prepare() {
    SetComputeThreads(options_.threads);
    GS_RETURN_IF_ERROR(CheckPrecision(options_.compute.precision, device_.type()));
    if (UsesGraph()) GS_RETURN_IF_ERROR(options_.gpu->UseOwnComputeStream());
    GS_RETURN_IF_ERROR(ApplyMathFlags(options_.allow_tf32, device_.type()));
    LetCudnnTryAlgorithms(options_.cudnn_benchmark, device_.type());
    if (options_.loss_scaler.has_value() || options_.compute.precision == Precision::kFp16) {
      scaler_.emplace(options_.loss_scaler.value_or(LossScalerOptions()));
    }
    if (scaler_.has_value()) loss_scale_ = at::empty({}, device_);
    if (options_.trace.wanted()) {
      GS_RETURN_IF_ERROR(CheckTrace());
      GS_ASSIGN_OR_RETURN(trace_,
                          KinetoTrace::Create(options_.trace, options_.gpu, options_.timeout));
    }
    ModelOptions model = options_.model;
    model.classes = std::max<int64_t>(model.classes, inputs_.train->classes());
    model.seed = options_.seed;
    GS_ASSIGN_OR_RETURN(model_, CreateModel(model));
    model_->train();
    GS_ASSIGN_OR_RETURN(checkpointer_,
                        Checkpointer::Create(options_.checkpoint, rank_,
                                             inputs_.sampler->options().world_size, inputs_.steps));
    GS_RETURN_IF_ERROR(checkpointer_->LoadWeights(*model_));
    GS_RETURN_IF_ERROR(MoveModel());
    return OpenLoader(/*epoch=*/0, /*position=*/0);
  }

  // Batches from there on.
  absl::Status OpenLoader(int64_t epoch, int64_t position) {
    upload_.reset();
    DataLoaderOptions loader;
    loader.start_epoch = epoch;
    loader.start_position = position;
    loader.batch_size = options_.batch_size;
    loader.threads = loader_threads_;
    loader.augment_seed = options_.seed;
    loader.pin_for = options_.gpu;
    loader.as_bytes = options_.gpu != nullptr;
    GS_ASSIGN_OR_RETURN(loader_, DataLoader::Create(inputs_.train, *inputs_.sampler, loader));
    BatchUploadOptions upload;
    upload.shape = inputs_.train->shape();
    upload.batch_size = loader.batch_size;
    upload.type = ScalarTypeOf(options_.compute.precision);
    upload.channels_last = options_.compute.channels_last;
    upload.augmentation = loader.augmentation;
    GS_ASSIGN_OR_RETURN(upload_, BatchUpload::Create(options_.gpu, loader_.get(), upload));
    return absl::OkStatus();
  }

  absl::Status Bind(GradientSync* sync, SideChannel* side_channel) override {
    sync_ = sync;
    side_channel_ = side_channel;
    DdpOptions ddp;
    ddp.optimizer = options_.optimizer;
    ddp.plan = options_.plan;
    ddp.timeout = options_.timeout;
    ddp.skip_nonfinite_steps = scaler_.has_value();
    ddp.forward_backward = [this] { ThrowAwayStep(); };
    GS_RETURN_IF_ERROR(ComparePrecisions());
    if (options_.record_gradients || !options_.straggler.nobody()) {
      ddp.on_gradient = [this](int parameter) { OnGradient(parameter); };
    }
    GS_ASSIGN_OR_RETURN(
        ddp_, DistributedDataParallel::Create(
                  model_, sync_, options_.synchronised ? side_channel_ : nullptr, std::move(ddp)));
    if (options_.record_gradients) gradient_done_.resize(plan().tensors().size());
    step_graph_ = std::make_unique<StepGraph>(
        ddp_.get(), UsesGraph(), [this](const Batch& batch) { return ForwardBackward(batch); });
    return Resume();
  }

  absl::StatusOr<TrainingResult> Run(
      const std::function<void(const StepReport&)>& on_step) override {
    TrainingResult result;
    WireStats wire_before = sync_->wire_stats();
    absl::Duration cpu_before = ProcessCpuTime();
    MonotonicTime measured_from = MonotonicTime::Now();
    result.first_step = first_step_;
    for (int64_t step = first_step_; step <= inputs_.steps; ++step) {
      if (step == first_step_ + options_.warmup_steps) {
        GS_RETURN_IF_ERROR(clock_.Drain());
        unmeasured_ = Unmeasured();
        wire_before = sync_->wire_stats();
        cpu_before = ProcessCpuTime();
        measured_from = MonotonicTime::Now();
      }
      StepReport report;
      report.step = step;
      report.steps = inputs_.steps;
      if (trace_ != nullptr) GS_RETURN_IF_ERROR(trace_->BeforeStep(step));
      GS_RETURN_IF_ERROR(Step(&report));
      if (trace_ != nullptr) GS_RETURN_IF_ERROR(trace_->AfterStep(step));
      unreported_.push_back(std::move(report));
      GS_RETURN_IF_ERROR(ReportSteps(MostPending(step), on_step, &result));
      KeepModel(step);
      GS_RETURN_IF_ERROR(SaveIfDue(&result));
    }
    GS_RETURN_IF_ERROR(clock_.Drain());
    GS_RETURN_IF_ERROR(ReportSteps(/*most_pending=*/0, on_step, &result));
    result.measured = MonotonicTime::Now() - measured_from - unmeasured_.time;
    result.cpu = ProcessCpuTime() - cpu_before - unmeasured_.cpu;
    result.wire = sync_->wire_stats() - wire_before - unmeasured_.wire;
    result.staleness = sync_->staleness();
    result.skipped_steps = skipped_steps_;
    if (scaler_.has_value()) result.loss_scale = scaler_->scale();
    // Under ssp and asp others may have many steps to go, but they live: a lost one ends the wait.
    GS_RETURN_IF_ERROR(ddp_->Settle(Deadline::In(kSettleTimeout)));
    GS_ASSIGN_OR_RETURN(result.accuracies, EvaluateKept(result.step_ends));
    GS_RETURN_IF_ERROR(Conclude(&result));
    return result;
  }

  const Plan& plan() const override { return ddp_->plan(); }

  int loader_threads() const override { return loader_threads_; }

 private:
  // Gradients are not seen in a replayed step.
  bool UsesGraph() const {
    return options_.cuda_graph && options_.gpu != nullptr && options_.gpu->is_cuda() &&
           !options_.record_gradients;
  }

  absl::Status MoveModel() {
    try {
      SetMemoryFormat(options_.compute, *model_);
      model_->to(device_);
    } catch (const std::exception& e) {
      return absl::InternalError(
          absl::StrCat("moving the model to ", device_.str(), ": ", e.what()));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTrace() const {
    const int64_t last = options_.trace.first_step + options_.trace.steps - 1;
    if (last <= inputs_.steps) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--trace_steps: expected steps of the job's ",
                                                   inputs_.steps, ", found ",
                                                   options_.trace.first_step, " to ", last));
  }

  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  // Two images are the fewest with which BatchNorm has a variance at a 1x1 feature map.
  void ThrowAwayStep() {
    const ImageShape shape = inputs_.train->shape();
    const at::Tensor images = at::randn({2, shape.channels, shape.height, shape.width}).to(device_);
    const at::Tensor labels = at::randint(inputs_.train->classes(), {2}, at::kLong).to(device_);
    CrossEntropy(Forward(options_.compute, *model_, images), labels).backward();
  }

  // In backward.
  void OnGradient(int parameter) {
    slow_down_.CatchUp();
    if (options_.record_gradients) gradient_done_[parameter] = MonotonicTime::Now();
  }

  absl::Status Step(StepReport* report) {
    StepTimes& times = report->times;
    GS_RETURN_IF_ERROR(clock_.BeginStep());
    const MonotonicTime start = MonotonicTime::Now();
    GS_ASSIGN_OR_RETURN(const Batch batch, upload_->Next());
    position_ = {report->step, batch.epoch, batch.next_position, batch.last_of_epoch};
    const MonotonicTime have_data = MonotonicTime::Now();
    times.data = have_data - start;

    StepOptions step;
    step.step = report->step;
    step.lr = report->lr = LearningRate(inputs_.recipe, report->step - 1);
    step.max_norm = options_.max_norm;
    if (scaler_.has_value()) {
      step.inverse_loss_scale = 1 / scaler_->scale();
      // Beyond fp32 every loss is infinite, as fp32 has it, and the step is skipped.
      const bool finite = scaler_->scale() <= std::numeric_limits<float>::max();
      loss_scale_.fill_(finite ? scaler_->scale() : std::numeric_limits<double>::infinity());
    }
    forward_done_ = MonotonicTime::InfinitePast();
    slow_down_.Begin(options_.straggler.Factor(rank_, report->step));
    GS_ASSIGN_OR_RETURN(const at::Tensor loss, step_graph_->Run(step, batch));
    GS_RETURN_IF_ERROR(ReadLoss(loss));
    slow_down_.End();
    const MonotonicTime backward_done = MonotonicTime::Now();
    // A graph has no forward of its own.
    forward_done_ = std::max(forward_done_, have_data);
    times.forward = forward_done_ - have_data;
    times.backward = backward_done - forward_done_;
    for (MonotonicTime done : gradient_done_) report->gradient_ready.push_back(done - have_data);

    // Before the wait for buckets: the next batch crosses the bus meanwhile.
    GS_RETURN_IF_ERROR(upload_->Prefetch());
    GS_RETURN_IF_ERROR(ddp_->FinishStep(NewDeadline()));
    if (scaler_.has_value()) {
      skipped_steps_ += ddp_->skipped();
      GS_RETURN_IF_ERROR(scaler_->Update(ddp_->skipped()));
    }
    times.exposed = ddp_->timing().exposed;
    times.update = ddp_->timing().update;
    times.update += slow_down_.Stretch(times.update);
    return clock_.EndStep();
  }

  // Throws what LibTorch throws.
  at::Tensor ForwardBackward(const Batch& batch) {
    const at::Tensor loss =
        CrossEntropy(Forward(options_.compute, *model_, batch.images), batch.labels);
    slow_down_.CatchUp();
    forward_done_ = MonotonicTime::Now();
    (scaler_.has_value() ? loss * loss_scale_ : loss).backward();
    return loss.detach();
  }

  absl::Status ReadLoss(const at::Tensor& loss) {
    try {
      losses_.Add(loss);
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("the loss of a step: LibTorch: ", e.what()));
    }
    return absl::OkStatus();
  }

  // Completes the times of a step that is done.
  absl::Status FillTimes(const TrainingClock::StepTime& time, StepReport* report) {
    StepTimes& times = report->times;
    times.total = time.total;
    if (options_.gpu == nullptr) return absl::OkStatus();
    // The clock of the host says nothing of when a GPU did what.
    GS_ASSIGN_OR_RETURN(const absl::optional<absl::Duration> exposed, ddp_->Exposed(report->step));
    times.exposed = exposed.value_or(times.exposed);
    times.backward = std::max(absl::ZeroDuration(), times.total - times.data - times.forward -
                                                        times.exposed - times.update);
    return absl::OkStatus();
  }

  // Losses that may be on their way after a step.
  size_t MostPending(int64_t step) const {
    if (!options_.report_all_after) return kMostPendingLosses;
    return options_.report_all_after(step) ? 0 : std::numeric_limits<size_t>::max();
  }

  std::string Where(int64_t step) const {
    return absl::StrCat("step ", step, " of ", inputs_.steps, ", rank ", rank_);
  }

  // Reports the steps whose losses have come and that are done; all but `most_pending` are waited
  // for.
  absl::Status ReportSteps(size_t most_pending,
                           const std::function<void(const StepReport&)>& on_step,
                           TrainingResult* result) {
    GS_RETURN_IF_ERROR(losses_.Take(most_pending, &result->losses));
    while (result->step_ends.size() < result->losses.size()) {
      // A loss is there before its step is done.
      GS_ASSIGN_OR_RETURN(const bool known, clock_.Known());
      if (!known && unreported_.size() <= most_pending) break;
      GS_ASSIGN_OR_RETURN(const TrainingClock::StepTime time, clock_.Take());
      StepReport& report = unreported_.front();
      report.loss = result->losses[result->step_ends.size()];
      // With a loss scale steps may be skipped for a while: LossScaler has the last word.
      if (!scaler_.has_value()) GS_RETURN_IF_ERROR(CheckFinite(Where(report.step), report.loss));
      result->learning_rates.push_back(report.lr);
      GS_RETURN_IF_ERROR(FillTimes(time, &report));
      result->step_ends.push_back(time.end);
      if (report.step >= first_step_ + options_.warmup_steps) result->times.push_back(report.times);
      on_step(report);
      unreported_.pop_front();
    }
    return absl::OkStatus();
  }

  // Goes on where a checkpoint left the job, if it is to.
  absl::Status Resume() {
    GS_ASSIGN_OR_RETURN(const JobState state,
                        checkpointer_->Resume(*model_, device_, *ddp_, *sync_, *side_channel_,
                                              Deadline::In(kEvaluationTimeout)));
    if (state.step == 0) return absl::OkStatus();
    first_step_ = state.step + 1;
    skipped_steps_ = state.skipped_steps;
    if (scaler_.has_value() && state.loss_scaler.has_value()) scaler_->Restore(*state.loss_scaler);
    return OpenLoader(state.epoch, state.position);
  }

  // A checkpoint is no part of any step, and its traffic and time are of none.
  absl::Status SaveIfDue(TrainingResult* result) {
    if (!checkpointer_->Due(position_)) return absl::OkStatus();
    GS_RETURN_IF_ERROR(clock_.Drain());
    clock_.Pause();
    const MonotonicTime begin = MonotonicTime::Now();
    const absl::Duration cpu_before = ProcessCpuTime();
    const WireStats wire_before = sync_->wire_stats();
    GS_RETURN_IF_ERROR(CheckFinite(Where(position_.step), *model_));
    absl::optional<double> accuracy;
    if (options_.checkpoint.best) {
      GS_RETURN_IF_ERROR(ddp_->Settle(Deadline::In(kSettleTimeout)));
      GS_RETURN_IF_ERROR(ddp_->BroadcastBuffers(NewDeadline()));
      GS_ASSIGN_OR_RETURN(
          const Evaluation evaluation,
          EvaluateModel(options_.compute, *model_, *inputs_.test, options_.batch_size,
                        *side_channel_, Deadline::In(kEvaluationTimeout)));
      accuracy = evaluation.accuracy;
    }
    JobState state;
    state.skipped_steps = skipped_steps_;
    if (scaler_.has_value()) state.loss_scaler = scaler_->state();
    GS_RETURN_IF_ERROR(checkpointer_->Save(position_, std::move(state), accuracy, *model_, device_,
                                           *ddp_, *sync_, *side_channel_));
    ++result->checkpoints;
    const absl::Duration time = MonotonicTime::Now() - begin;
    result->checkpoint_time += time;
    unmeasured_.time += time;
    unmeasured_.cpu += ProcessCpuTime() - cpu_before;
    unmeasured_.wire = unmeasured_.wire - (wire_before - sync_->wire_stats());
    return absl::OkStatus();
  }

  absl::Status MeanLosses(TrainingResult* result) {
    const size_t tail = std::max<size_t>(1, result->losses.size() / 10);
    double tail_loss = 0;
    for (size_t i = result->losses.size() - tail; i < result->losses.size(); ++i) {
      tail_loss += result->losses[i] / static_cast<double>(tail);
    }
    GS_ASSIGN_OR_RETURN(
        const std::vector<double> sums,
        side_channel_->SumDoubles({result->losses.front(), tail_loss}, NewDeadline()));
    result->first_loss = sums[0] / side_channel_->world_size();
    result->final_loss = sums[1] / side_channel_->world_size();
    return absl::OkStatus();
  }

  // What follows the last step: mean losses, evaluation, the proof that all workers hold the same
  // parameters.
  absl::Status Conclude(TrainingResult* result) {
    GS_RETURN_IF_ERROR(CheckFinite(Where(inputs_.steps), *model_));
    // A job that is resumed after its last step has none.
    if (!result->losses.empty()) GS_RETURN_IF_ERROR(MeanLosses(result));
    result->params_sha256 = ddp_->ParamsSha256();
    if (options_.synchronised) GS_RETURN_IF_ERROR(CompareParameters(result->params_sha256));
    if (options_.evaluate) {
      GS_RETURN_IF_ERROR(ddp_->BroadcastBuffers(NewDeadline()));
      GS_ASSIGN_OR_RETURN(
          const Evaluation evaluation,
          EvaluateModel(options_.compute, *model_, *inputs_.test, options_.batch_size,
                        *side_channel_, Deadline::In(kEvaluationTimeout)));
      result->test_samples = evaluation.samples;
      result->test_loss = evaluation.loss;
      result->test_accuracy = evaluation.accuracy;
    }
    return sync_->Shutdown(NewDeadline());
  }

  // Copies what a later evaluation needs, on rank 0 after every so many steps.
  void KeepModel(int64_t step) {
    const bool due = options_.evaluate_every > 0 && step % options_.evaluate_every == 0;
    if (!due || rank_ != 0) return;
    clock_.Pause();
    kept_.Keep(*model_, step);
  }

  // Rank 0 evaluates what it kept, alone, while the others wait; the model is then as before.
  absl::StatusOr<std::vector<AccuracyPoint>> EvaluateKept(
      const std::vector<absl::Duration>& step_ends) {
    std::vector<AccuracyPoint> points;
    if (options_.evaluate_every == 0) return points;
    if (rank_ == 0) {
      SideChannel alone(WorkerGroup(), "curve");
      GS_RETURN_IF_ERROR(kept_.ForEach(*model_, [&](int64_t step) {
        const absl::StatusOr<Evaluation> evaluation =
            EvaluateModel(options_.compute, *model_, *inputs_.test, options_.batch_size, alone,
                          Deadline::Never());
        if (!evaluation.ok()) return evaluation.status();
        points.push_back({step, step_ends[step - first_step_], evaluation->accuracy});
        return absl::OkStatus();
      }));
    }
    GS_RETURN_IF_ERROR(side_channel_->Barrier(Deadline::In(kEvaluationTimeout)));
    return points;
  }

  // Ranks that compute in different types would train, but nobody could say what.
  absl::Status ComparePrecisions() {
    if (!options_.synchronised) return absl::OkStatus();
    const std::string mine =
        absl::StrCat("--precision=", PrecisionName(options_.compute.precision),
                     options_.allow_tf32 ? " --tf32" : "", scaler_.has_value() ? " scaled" : "");
    GS_ASSIGN_OR_RETURN(const std::string difference, DifferenceTo(mine));
    if (difference.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("expected the same precision on all workers, ", difference));
  }

  absl::Status CompareParameters(const std::string& mine) {
    GS_ASSIGN_OR_RETURN(const std::string difference, DifferenceTo(mine));
    if (difference.empty()) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("parameters differ after the last step: ", difference));
  }

  // Collective. "rank 0 has A, rank 2 has B"; empty where all workers have the same.
  absl::StatusOr<std::string> DifferenceTo(const std::string& mine) {
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        side_channel_->AllGather(mine, NewDeadline()));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] == all[0]) continue;
      return absl::StrCat("rank 0 has ", all[0], ", rank ", rank, " has ", all[rank]);
    }
    return std::string();
  }

  // Few, so that reports are not late; enough that a GPU always has the next step queued.
  static constexpr size_t kMostPendingLosses = 4;
  static constexpr absl::Duration kEvaluationTimeout = absl::Hours(1);
  static constexpr absl::Duration kSettleTimeout = absl::Hours(24);

  const TrainerOptions options_;
  const int rank_;
  const int loader_threads_;
  const c10::Device device_;
  GradientSync* sync_ = nullptr;
  SideChannel* side_channel_ = nullptr;
  const JobInputs inputs_;
  std::shared_ptr<Model> model_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<BatchUpload> upload_;
  TrainingClock clock_;
  std::unique_ptr<KinetoTrace> trace_;  // null unless wanted
  SlowDown slow_down_;
  absl::optional<LossScaler> scaler_;
  at::Tensor loss_scale_;       // its scale on the device, where a captured step reads it
  MonotonicTime forward_done_;  // of the step under way
  std::unique_ptr<Checkpointer> checkpointer_;
  int64_t first_step_ = 1;
  JobPosition position_;   // after the step under way, or the last one
  Unmeasured unmeasured_;  // among the measured steps
  int64_t skipped_steps_ = 0;
  LossReader losses_;
  std::deque<StepReport> unreported_;         // whose losses or ends are on their way
  KeptModels kept_;                           // rank 0, with evaluate_every
  std::vector<MonotonicTime> gradient_done_;  // in this step, by parameter; empty unless recorded
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<StepGraph> step_graph_;  // after Bind()
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options, int rank,
                                                         int world_size) {
  GS_ASSIGN_OR_RETURN(JobInputs inputs, OpenJobInputs(options, rank, world_size));
  auto trainer = std::make_unique<TrainerImpl>(options, rank, world_size, std::move(inputs));
  GS_RETURN_IF_ERROR(trainer->Prepare());
  return trainer;
}

}  // namespace gradsync
