#include "train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <thread>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/activity.h"
#include "base/deadline.h"
#include "base/flag_error.h"
#include "base/monotonic_time.h"
#include "base/status_macros.h"
#include "base/trace_recorder.h"
#include "data/augment.h"
#include "data/data_loader.h"
#include "data/loader_threads.h"
#include "ddp/distributed_data_parallel.h"
#include "models/check_slices.h"
#include "models/layers.h"
#include "models/loss.h"
#include "models/sliced_loss.h"
#include "sync/device_buckets.h"
#include "train/batch_figures.h"
#include "train/batch_upload.h"
#include "train/channel_moments.h"
#include "train/check_finite.h"
#include "train/checkpointer.h"
#include "train/compute_threads.h"
#include "train/data_parallel_step.h"
#include "train/decay_groups.h"
#include "train/evaluate.h"
#include "train/forward.h"
#include "train/job_data.h"
#include "train/job_inputs.h"
#include "train/job_state.h"
#include "train/kept_models.h"
#include "train/loss_reader.h"
#include "train/loss_scaler.h"
#include "train/pipeline_stage.h"
#include "train/precision.h"
#include "train/record_step.h"
#include "train/sharded_step.h"
#include "train/slow_down.h"
#include "train/step_graph.h"
#include "train/step_log.h"
#include "train/tensor_slice.h"
#include "train/training_clock.h"
#include "train/weight_average.h"

namespace gradsync {
namespace {

absl::Duration ProcessCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

// What this process has spent, since some moment.
struct Spent {
  absl::Duration time;
  absl::Duration cpu;
  WireStats wire;
};

Spent operator-(const Spent& a, const Spent& b) {
  return {a.time - b.time, a.cpu - b.cpu, a.wire - b.wire};
}

class TrainerImpl : public Trainer {
 public:
  // `replica`: which of those that train on other samples each this rank is.
  TrainerImpl(const TrainerOptions& options, int rank, int replica, int world_size,
              JobInputs inputs)
      : options_(options),
        rank_(rank),
        replica_(replica),
        loader_threads_(
            ChooseLoaderThreads(options.loader_threads, options.gpu != nullptr,
                                static_cast<int>(std::thread::hardware_concurrency()),
                                options.ranks_on_host > 0 ? options.ranks_on_host : world_size)),
        device_(TensorDevice(options.gpu.get())),
        inputs_(std::move(inputs)),
        optimizer_(options.optimizer),
        clock_(options.gpu) {}

  absl::Status Prepare() {
    SetComputeThreads(options_.threads);
    GS_RETURN_IF_ERROR(CheckPrecision(options_.compute.precision, device_.type()));
    if (UsesGraph()) {
      GS_RETURN_IF_ERROR(CheckGraph());
      GS_RETURN_IF_ERROR(options_.gpu->UseOwnComputeStream());
    }
    GS_RETURN_IF_ERROR(ApplyMathFlags(options_.allow_tf32, device_.type()));
    LetCudnnTryAlgorithms(options_.cudnn_benchmark, device_.type());
    if (options_.loss_scaler.has_value() || options_.compute.precision == Precision::kFp16) {
      scaler_.emplace(options_.loss_scaler.value_or(LossScalerOptions()));
    }
    if (scaler_.has_value()) loss_scale_ = at::empty({}, device_);
    if (options_.recorder != nullptr) {
      GS_RETURN_IF_ERROR(
          CheckTrace(options_.recorder->first_step(), options_.recorder->last_step()));
    }
    if (options_.trace.wanted()) {
      const TraceOptions& trace = options_.trace;
      GS_RETURN_IF_ERROR(CheckTrace(trace.first_step, trace.first_step + trace.steps - 1));
      GS_ASSIGN_OR_RETURN(trace_,
                          KinetoTrace::Create(options_.trace, options_.gpu, options_.timeout));
    }
    ModelOptions model = FitModel(options_.model, {inputs_.train, inputs_.train_tokens});
    model.seed = options_.seed;
    const Mesh& mesh = options_.pipeline.mesh;
    if (mesh.has_slices()) {
      GS_RETURN_IF_ERROR(
          CheckSlices(model, mesh.size(MeshDimension::kTensor), options_.pipeline.split_sequence));
    }
    GS_ASSIGN_OR_RETURN(model_, CreateModel(model));
    model_->train();
    GS_ASSIGN_OR_RETURN(group_of_,
                        ExcludeFromDecay(options_.no_weight_decay, *model_, &optimizer_));
    if (options_.sync_batchnorm && SetMomentExchange(*model_, nullptr) == 0) {
      return FlagError("sync_batchnorm", "a model with BatchNorm", options_.model.name);
    }
    GS_ASSIGN_OR_RETURN(checkpointer_,
                        Checkpointer::Create(options_.checkpoint, rank_,
                                             inputs_.sampler->options().world_size, inputs_.steps));
    GS_RETURN_IF_ERROR(checkpointer_->LoadWeights(*model_));
    GS_RETURN_IF_ERROR(MoveModel());
    GS_RETURN_IF_ERROR(MakeReplicas(model));
    return OpenLoader(/*epoch=*/0, /*position=*/0);
  }

  // Batches from there on.
  absl::Status OpenLoader(int64_t epoch, int64_t position) {
    upload_.reset();
    DataLoaderOptions loader;
    loader.start_epoch = epoch;
    loader.start_position = position;
    loader.batch_size = options_.batch_size;
    loader.threads = loader_threads_.first;
    loader.most_threads = loader_threads_.most;
    loader.augment_seed = options_.seed;
    loader.pin_for = options_.gpu;
    loader.as_bytes = options_.gpu != nullptr;
    BatchUploadOptions upload;
    if (OfTokens()) {
      GS_ASSIGN_OR_RETURN(loader_,
                          DataLoader::Create(inputs_.train_tokens, *inputs_.sampler, loader));
      upload.context = inputs_.train_tokens->context();
    } else {
      loader.augmentation = AugmentationOf(*inputs_.train);
      loader.depth =
          PrefetchDepth(BatchBytes(loader, inputs_.train->shape()), options_.prefetch_bytes);
      GS_ASSIGN_OR_RETURN(loader_, DataLoader::Create(inputs_.train, *inputs_.sampler, loader));
      upload.shape = inputs_.train->shape();
    }
    upload.batch_size = loader.batch_size;
    upload.type = ScalarTypeOf(options_.compute.precision);
    upload.channels_last = options_.compute.channels_last;
    upload.augmentation = loader.augmentation;
    GS_ASSIGN_OR_RETURN(upload_, BatchUpload::Create(options_.gpu, loader_.get(), upload));
    return absl::OkStatus();
  }

  absl::Status Bind(GradientSync* sync, SideChannel* side_channel, SideChannel* moments,
                    const PipelinePlace* place, const SlicePlace* slice) override {
    sync_ = sync;
    side_channel_ = side_channel;
    if (place != nullptr) GS_RETURN_IF_ERROR(MakeStage(*place));
    if (slice != nullptr) GS_RETURN_IF_ERROR(MakeSlice(*slice));
    DdpOptions ddp;
    ddp.optimizer = optimizer_;
    ddp.group_of = group_of_;
    ddp.plan = options_.plan;
    ddp.timeout = options_.timeout;
    ddp.on_stall = options_.on_stall;
    ddp.stall_after = options_.stall_after;
    ddp.skip_nonfinite_steps = scaler_.has_value();
    ddp.recorder = options_.recorder;
    ddp.activity = activity();
    ddp.forward_backward = [this] { ThrowAwayStep(); };
    GS_RETURN_IF_ERROR(ComparePrecisions());
    if (options_.record_gradients || !options_.straggler.nobody() || activity() != nullptr) {
      ddp.on_gradient = [this](int parameter) { OnGradient(parameter); };
    }
    SideChannel* const replicas = place != nullptr   ? place->replicas
                                  : slice != nullptr ? slice->replicas
                                                     : side_channel_;
    if (stage_ != nullptr) ddp.part = stage_->part();
    if (options_.shard_parameters) ddp.units = UnitsOf(*model_);
    GS_ASSIGN_OR_RETURN(
        ddp_, DistributedDataParallel::Create(
                  model_, sync_, options_.synchronised ? replicas : nullptr, std::move(ddp)));
    if (stage_ != nullptr) GS_RETURN_IF_ERROR(stage_->Connect());
    if (options_.shard_parameters) {
      sharded_ = std::make_unique<ShardedStep>(options_.compute, model_.get(), ddp_.get(),
                                               options_.timeout);
    }
    if (options_.record_gradients) gradient_done_.resize(plan().tensors().size());
    GS_RETURN_IF_ERROR(SynchroniseNorms(moments));
    if (options_.ema_decay > 0) {
      average_.emplace(options_.ema_decay);
      GS_RETURN_IF_ERROR(average_->Begin(*model_));
    }
    step_graph_ = std::make_unique<StepGraph>(
        ddp_.get(), UsesGraph(), [this](const Batch& batch) { return ForwardBackward(batch); });
    return Resume();
  }

  absl::StatusOr<TrainingResult> Run(
      const std::function<void(const StepReport&)>& on_step) override {
    TrainingResult result;
    measured_from_ = SpentSoFar();
    result.first_step = first_step_;
    result.last_step = first_step_ - 1;
    result.saved = first_step_ > 1;
    absl::optional<Activity::Work> work(absl::in_place, activity());
    for (int64_t step = first_step_; step <= inputs_.steps; ++step) {
      if (options_.stop_before) {
        GS_ASSIGN_OR_RETURN(result.stopped, options_.stop_before(step));
        if (result.stopped) break;
      }
      if (step == FirstMeasured()) {
        GS_RETURN_IF_ERROR(clock_.Drain());
        measured_from_ = SpentSoFar();
        NoteSliceTraffic();
      }
      StepReport report;
      report.step = step;
      report.steps = inputs_.steps;
      if (trace_ != nullptr) GS_RETURN_IF_ERROR(trace_->BeforeStep(step));
      if (options_.memory != nullptr) options_.memory->StartPeak();
      GS_RETURN_IF_ERROR(Step(&report));
      if (activity() != nullptr) activity()->Prove();
      if (options_.memory != nullptr && step >= FirstMeasured()) {
        result.peak_tensor_bytes = std::max(result.peak_tensor_bytes, options_.memory->PeakBytes());
      }
      if (trace_ != nullptr) GS_RETURN_IF_ERROR(trace_->AfterStep(step));
      unreported_.push_back(std::move(report));
      GS_RETURN_IF_ERROR(ReportSteps(MostPending(step), on_step));
      KeepModel(step);
      result.last_step = step;
      result.saved = checkpointer_->Due(position_);
      if (result.saved) GS_RETURN_IF_ERROR(Save(options_.checkpoint.best, &result));
    }
    if (result.stopped && !result.saved && result.last_step > 0 &&
        !options_.checkpoint.folder.empty()) {
      GS_RETURN_IF_ERROR(Save(/*evaluate=*/false, &result));
      result.saved = true;
    }
    work.reset();
    GS_RETURN_IF_ERROR(clock_.Drain());
    GS_RETURN_IF_ERROR(ReportSteps(/*most_pending=*/0, on_step));
    FillSteps(&result);
    const Spent measured = SpentSoFar() - measured_from_;
    result.measured = measured.time;
    result.cpu = measured.cpu;
    result.wire = measured.wire;
    result.staleness = sync_->staleness();
    result.skipped_steps = skipped_steps_;
    result.stage_wait = stage_wait_;
    if (stage_ != nullptr) {
      result.stage_tx_bytes = stage_->link().bytes_sent();
      result.stage_rx_bytes = stage_->link().bytes_received();
    }
    if (slice_ != nullptr) {
      result.slice_wait = slice_->waited() - slice_wait_before_;
      result.slice_tx_bytes = slice_->link().bytes_sent() - slice_tx_before_;
      result.slice_rx_bytes = slice_->link().bytes_received() - slice_rx_before_;
    }
    if (moments_ != nullptr) {
      result.moment_exchanges = moments_->calls();
      result.moment_wait = moments_->waited();
    }
    if (scaler_.has_value()) result.loss_scale = scaler_->scale();
    // Under ssp and asp others may have many steps to go, but they live: a lost one ends the wait.
    GS_RETURN_IF_ERROR(ddp_->Settle(Deadline::In(kSettleTimeout)));
    if (!result.stopped) {
      GS_ASSIGN_OR_RETURN(result.accuracies, EvaluateKept());
    }
    GS_RETURN_IF_ERROR(Conclude(&result));
    return result;
  }

  const Plan& plan() const override { return ddp_->plan(); }

  int loader_threads() const override { return loader_->threads(); }

  int64_t steps_per_epoch() const override { return inputs_.steps_per_epoch; }

  std::string split() const override {
    return stage_ == nullptr ? std::string() : SplitToString(stage_->split());
  }

 private:
  absl::Status MakeStage(const PipelinePlace& place) {
    PipelineStageOptions stage;
    stage.pipeline = options_.pipeline;
    stage.compute = options_.compute;
    stage.timeout = options_.timeout;
    stage.example = [this] { return ExampleInputs(options_.batch_size); };
    GS_ASSIGN_OR_RETURN(stage_, PipelineStage::Create(stage, place, model_, side_channel_));
    return absl::OkStatus();
  }

  absl::Status MakeReplicas(const ModelOptions& model) {
    if (options_.data_parallel == 1) return absl::OkStatus();
    DataParallelOptions replicas;
    replicas.replicas = options_.data_parallel;
    replicas.threads = options_.threads;
    replicas.part = inputs_.accumulation.batch_size;
    replicas.model = model;
    replicas.compute = options_.compute;
    replicas.activity = activity();
    GS_ASSIGN_OR_RETURN(replicas_, DataParallelStep::Create(replicas, model_));
    return absl::OkStatus();
  }

  absl::Status MakeSlice(const SlicePlace& place) {
    TensorSliceOptions slice;
    slice.split_sequence = options_.pipeline.split_sequence;
    slice.timeout = options_.timeout;
    slice.activity = activity();
    GS_ASSIGN_OR_RETURN(slice_, TensorSlice::Create(slice, place, model_));
    return absl::OkStatus();
  }

  // Gradients are not seen in a replayed step.
  bool UsesGraph() const {
    return options_.cuda_graph && options_.gpu != nullptr && options_.gpu->is_cuda() &&
           !options_.record_gradients;
  }

  // A graph has the work of one batch, and none that waits for peers.
  absl::Status CheckGraph() const {
    const std::string with = options_.accumulate > 1   ? "--accumulate"
                             : options_.sync_batchnorm ? "--sync_batchnorm"
                                                       : "";
    if (with.empty()) return absl::OkStatus();
    return FlagError("cuda_graph", absl::StrCat("false on a GPU with ", with), "true");
  }

  // After rank 0 has run a step alone, to see the order of gradients.
  absl::Status SynchroniseNorms(SideChannel* channel) {
    if (!options_.sync_batchnorm || !options_.synchronised || side_channel_->world_size() == 1) {
      return absl::OkStatus();
    }
    if (channel == nullptr) {
      return absl::InvalidArgumentError(
          "synchronised BatchNorm: expected a side channel for moments, found null");
    }
    moments_ = std::make_unique<ChannelMoments>(channel, options_.timeout, activity());
    SetMomentExchange(*model_, moments_.get());
    return absl::OkStatus();
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

  absl::Status CheckTrace(int64_t first, int64_t last) const {
    if (last <= inputs_.steps) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--trace_steps: expected steps of the job's ",
                                                   inputs_.steps, ", found ", first, " to ", last));
  }

  int64_t FirstMeasured() const { return first_step_ + options_.warmup_steps; }

  Spent SpentSoFar() const {
    return {MonotonicTime::Now().since_origin(), ProcessCpuTime(), sync_->wire_stats()};
  }

  void NoteSliceTraffic() {
    if (slice_ == nullptr) return;
    slice_wait_before_ = slice_->waited();
    slice_tx_before_ = slice_->link().bytes_sent();
    slice_rx_before_ = slice_->link().bytes_received();
  }

  Activity* activity() const { return options_.activity.get(); }

  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  bool OfTokens() const { return inputs_.train_tokens != nullptr; }

  absl::StatusOr<Evaluation> EvaluateOnTest(SideChannel& side_channel, Deadline deadline) {
    EvaluationShare share = {side_channel.rank(), side_channel.world_size(), nullptr,
                             [this] { return sync_->status(); }};
    if (stage_ != nullptr) {
      share.rank = replica_;
      share.ranks = options_.pipeline.mesh.replicas();
      share.logits = [this](const at::Tensor& inputs) { return stage_->TestLogits(inputs); };
    }
    if (slice_ != nullptr) {
      share.rank = replica_;
      share.ranks = options_.pipeline.mesh.replicas();
      share.logits = [this](const at::Tensor& inputs) { return LogitsOfSlices(inputs); };
    }
    if (sharded_ != nullptr) {
      share.in_step = true;
      share.logits = [this](const at::Tensor& inputs) { return sharded_->TestLogits(inputs); };
    }
    // Stages wait for one another, which only their links see, and so do slices.
    Activity* const watched = stage_ != nullptr || slice_ != nullptr ? nullptr : activity();
    if (OfTokens()) {
      return EvaluateModel(options_.compute, *model_, *inputs_.test_tokens, options_.batch_size,
                           share, side_channel, deadline, watched);
    }
    return EvaluateModel(options_.compute, *model_, *inputs_.test, options_.batch_size, share,
                         side_channel, deadline, watched);
  }

  // Of a test batch, on the slice that counts it.
  absl::StatusOr<at::Tensor> LogitsOfSlices(const at::Tensor& inputs) {
    at::Tensor part;
    try {
      part = Forward(options_.compute, *model_, inputs);
    } catch (const std::exception& e) {
      GS_RETURN_IF_ERROR(slice_->status());
      return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
    }
    GS_ASSIGN_OR_RETURN(at::Tensor whole, slice_->WholeLogits(part));
    return slice_->is_first() ? whole : at::Tensor();
  }

  at::Tensor ExampleInputs(int64_t samples) const {
    if (OfTokens()) {
      return at::zeros({samples, inputs_.train_tokens->context()}, at::kLong).to(device_);
    }
    const ImageShape shape = inputs_.train->shape();
    return at::randn({samples, shape.channels, shape.height, shape.width}).to(device_);
  }

  // Two images are the fewest with which BatchNorm has a variance at a 1x1 feature map.
  void ThrowAwayStep() {
    const at::Tensor inputs = ExampleInputs(2);
    const at::Tensor labels =
        OfTokens() ? inputs : at::randint(inputs_.train->classes(), {2}, at::kLong).to(device_);
    LossOf(Forward(options_.compute, *model_, inputs), labels, /*label_smoothing=*/0)
        .loss.backward();
  }

  // In backward.
  void OnGradient(int parameter) {
    CountActivity(activity());
    slow_down_.CatchUp();
    if (options_.record_gradients) gradient_done_[parameter] = MonotonicTime::Now();
  }

  absl::Status Step(StepReport* report) {
    StepTimes& times = report->times;
    GS_RETURN_IF_ERROR(clock_.BeginStep());
    const MonotonicTime begin = MonotonicTime::Now();
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
    const absl::Status computed = ComputeGradients(step, report);
    // LibTorch's words about it have lost the code.
    if (moments_ != nullptr) GS_RETURN_IF_ERROR(moments_->status());
    if (slice_ != nullptr) GS_RETURN_IF_ERROR(slice_->status());
    if (sharded_ != nullptr) GS_RETURN_IF_ERROR(sharded_->status());
    GS_RETURN_IF_ERROR(computed);
    {
      const Activity::Wait wait(activity());
      GS_RETURN_IF_ERROR(ddp_->FinishStep(NewDeadline()));
    }
    if (scaler_.has_value()) {
      skipped_steps_ += ddp_->skipped();
      GS_RETURN_IF_ERROR(scaler_->Update(ddp_->skipped()));
    }
    times.exposed += ddp_->timing().exposed;
    times.backward -= ddp_->timing().in_backward;
    times.update = ddp_->timing().update;
    const MonotonicTime finished = MonotonicTime::Now();
    times.update += slow_down_.Stretch(times.update);
    GS_RETURN_IF_ERROR(UpdateAverage(&times.update));
    GS_RETURN_IF_ERROR(clock_.EndStep());
    RecordStep(options_.recorder.get(), report->step, begin, finished);
    return absl::OkStatus();
  }

  // Before each forward. Not part of what a graph replays: that reads the new seed.
  absl::Status SeedModel(int64_t step, int64_t micro_batch) {
    try {
      model_->BeginStep(StepSeed(options_.seed, replica_, step, micro_batch));
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("step ", step, ": LibTorch: ", e.what()));
    }
    return absl::OkStatus();
  }

  // The step's batch `i`, the next one, entered into the job's books. With the first it is known
  // how many the step has. With replicas each part of a batch counts as one.
  absl::StatusOr<Batch> NextBatch(int64_t i, StepReport* report) {
    const MonotonicTime start = MonotonicTime::Now();
    GS_ASSIGN_OR_RETURN(Batch batch, upload_->Next());
    CountActivity(activity());
    position_ = {report->step, batch.epoch, batch.next_position, batch.last_of_epoch};
    if (i == 0) batches_ = inputs_.accumulation.BatchesOfStepAt(batch.position);
    report->times.data += MonotonicTime::Now() - start;
    report->epoch = batch.epoch + 1;
    report->samples += batch.labels.numel();
    const int64_t parts = replicas_ != nullptr ? replicas_->PartsOf(batch) : 1;
    const bool last = i + parts == batches_;
    if (last && (batch.last_of_epoch || report->step == report->steps)) report->epoch_end.emplace();
    return batch;
  }

  // This stage's part of the step, whose batches are the pipeline's micro-batches.
  absl::Status ComputeStage(const StepOptions& options, StepReport* report) {
    GS_ASSIGN_OR_RETURN(Batch first, NextBatch(0, report));
    PipelineStage::Step step;
    step.options = options;
    step.micro_batches = batches_;
    step.label_smoothing = options_.label_smoothing;
    step.next = [&](int64_t i) -> absl::StatusOr<Batch> {
      if (i > 0) return NextBatch(i, report);
      return std::move(first);
    };
    step.seed = [&](int64_t i) {
      model_->BeginStep(StepSeed(options_.seed, replica_, options.step, i));
    };
    // For neighbours, which only the link sees: a stage can be lost, and never counts as stuck.
    const Activity::Wait wait(activity());
    StageTimes times;
    GS_ASSIGN_OR_RETURN(const BatchFigures figures, stage_->Run(*ddp_, step, &times));
    report->times.forward = times.forward;
    report->times.backward = times.backward;
    report->times.exposed = times.waited;
    if (options.step >= FirstMeasured()) stage_wait_ += times.waited;
    FigureSum sum;
    return Count(figures, /*last=*/true, &sum);
  }

  // The step by replicas, each of which has a part of each batch.
  absl::Status ComputeReplicas(const StepOptions& step, StepReport* report) {
    StepTimes& times = report->times;
    FigureSum figures;
    batches_ = 1;
    for (int64_t i = 0; i < batches_;) {
      ReplicaPoints points;
      points.begin = MonotonicTime::Now();
      DataParallelStep::Work work;
      work.step = step;
      GS_ASSIGN_OR_RETURN(work.batch, NextBatch(i, report));
      points.have_data = MonotonicTime::Now();
      work.first_part = i;
      work.parts = batches_;
      work.label_smoothing = options_.label_smoothing;
      work.seed = [&](int64_t part) {
        return StepSeed(options_.seed, replica_, step.step, /*micro_batch=*/part);
      };
      slow_down_.Begin(options_.straggler.Factor(rank_, report->step));
      GS_RETURN_IF_ERROR(replicas_->Run(*ddp_, work, &figures, &times.replicas, &points));
      slow_down_.End();
      const MonotonicTime done = MonotonicTime::Now();
      RecordReplicas(options_.recorder.get(), step.step, points);
      times.forward += points.forward_done - points.have_data;
      times.backward += done - points.forward_done;
      i += replicas_->PartsOf(work.batch);
    }
    FigureSum step_figures;
    return Count(figures.OfStep(), /*last=*/true, &step_figures);
  }

  // Forward and backward of the step's batches. Those before the last only add up gradients.
  absl::Status ComputeGradients(const StepOptions& step, StepReport* report) {
    if (stage_ != nullptr) return ComputeStage(step, report);
    if (replicas_ != nullptr) return ComputeReplicas(step, report);
    FigureSum figures;
    batches_ = 1;
    for (int64_t i = 0; i < batches_; ++i) {
      const MonotonicTime start = MonotonicTime::Now();
      GS_ASSIGN_OR_RETURN(const Batch batch, NextBatch(i, report));
      const MonotonicTime have_data = MonotonicTime::Now();
      const bool last = i + 1 == batches_;
      const absl::Duration before = report->times.forward + report->times.backward;

      GS_RETURN_IF_ERROR(SeedModel(step.step, /*micro_batch=*/i));
      forward_done_ = MonotonicTime::InfinitePast();
      slow_down_.Begin(options_.straggler.Factor(rank_, report->step));
      GS_ASSIGN_OR_RETURN(const BatchFigures own,
                          last ? step_graph_->Run(step, batch) : AddGradients(step, batch));
      GS_RETURN_IF_ERROR(Count(own, last, &figures));
      slow_down_.End();
      const MonotonicTime backward_done = MonotonicTime::Now();
      // A graph has no forward of its own.
      forward_done_ = std::max(forward_done_, have_data);
      RecordBatch(options_.recorder.get(), step.step,
                  {start, have_data, forward_done_, backward_done});
      report->times.forward += forward_done_ - have_data;
      report->times.backward += backward_done - forward_done_;
      if (last) {
        for (MonotonicTime done : gradient_done_) {
          report->gradient_ready.push_back(before + (done - have_data));
        }
      }
      // Before the wait for buckets: the next batch crosses the bus meanwhile.
      GS_RETURN_IF_ERROR(upload_->Prefetch());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<BatchFigures> AddGradients(const StepOptions& step, const Batch& batch) {
    const auto no_sync = ddp_->NoSync();
    try {
      return ForwardBackward(batch);
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("step ", step.step, ": LibTorch: ", e.what()));
    }
  }

  // This and the next throw what LibTorch throws.
  SlicedLoss LossOf(const at::Tensor& logits, const at::Tensor& labels, double label_smoothing) {
    if (slice_ != nullptr) return slice_->Loss(logits, labels, label_smoothing);
    const at::Tensor loss = CrossEntropy(logits, labels, label_smoothing);
    return {loss, CorrectPredictions(logits, labels)};
  }

  BatchFigures ForwardBackward(const Batch& batch) {
    const at::Tensor logits = sharded_ != nullptr
                                  ? sharded_->Forward(batch.images)
                                  : Forward(options_.compute, *model_, batch.images);
    const auto [loss, hits] = LossOf(logits, batch.labels, options_.label_smoothing);
    const at::Tensor correct = hits.to(at::kFloat);
    slow_down_.CatchUp();
    forward_done_ = MonotonicTime::Now();
    at::Tensor objective = loss;
    if (batches_ > 1) objective = objective / static_cast<double>(batches_);
    if (scaler_.has_value()) objective = objective * loss_scale_;
    if (sharded_ != nullptr) {
      sharded_->Backward(objective);
    } else {
      objective.backward();
    }
    return {loss.detach(), correct};
  }

  // Adds a batch's figures to the step's, which are read when they are whole.
  absl::Status Count(const BatchFigures& own, bool last, FigureSum* sum) {
    try {
      sum->Add(own);
      if (!last) return absl::OkStatus();
      const BatchFigures figures = sum->OfStep();
      losses_.Add(figures.loss);
      correct_.Add(figures.correct);
    } catch (const std::exception& e) {
      return absl::InternalError(absl::StrCat("the loss of a step: LibTorch: ", e.what()));
    }
    return absl::OkStatus();
  }

  absl::Status UpdateAverage(absl::Duration* time) {
    if (!average_.has_value() || ddp_->skipped()) return absl::OkStatus();
    const MonotonicTime start = MonotonicTime::Now();
    GS_RETURN_IF_ERROR(average_->Update(*model_));
    *time += MonotonicTime::Now() - start;
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
                           const std::function<void(const StepReport&)>& on_step) {
    GS_RETURN_IF_ERROR(losses_.Take(most_pending, &read_losses_));
    GS_RETURN_IF_ERROR(correct_.Take(most_pending, &correct_counts_));
    while (!read_losses_.empty() && !correct_counts_.empty()) {
      // A loss is there before its step is done.
      GS_ASSIGN_OR_RETURN(const bool known, clock_.Known());
      if (!known && unreported_.size() <= most_pending) break;
      GS_ASSIGN_OR_RETURN(const TrainingClock::StepTime time, clock_.Take());
      StepReport& report = unreported_.front();
      report.loss = read_losses_.front();
      report.correct = std::llround(correct_counts_.front());
      read_losses_.pop_front();
      correct_counts_.pop_front();
      // With a loss scale steps may be skipped for a while: LossScaler has the last word.
      if (!scaler_.has_value() && !options_.allow_nonfinite) {
        GS_RETURN_IF_ERROR(CheckFinite(Where(report.step), report.loss));
      }
      GS_RETURN_IF_ERROR(FillTimes(time, &report));
      if (log_.added() == 0) first_loss_ = report.loss;
      log_.Add({report.step, report.loss, report.lr, time.end, report.times});
      if (DueToKeep(report.step)) kept_ends_[report.step] = time.end;
      tally_.Add(report.epoch, report.loss, static_cast<double>(report.correct), report.samples);
      if (report.epoch_end.has_value()) report.epoch_end = tally_.Current();
      on_step(report);
      unreported_.pop_front();
    }
    return absl::OkStatus();
  }

  void FillSteps(TrainingResult* result) const {
    result->step_stride = log_.stride();
    result->steps = log_.added();
    result->measured_steps = std::max<int64_t>(0, result->last_step - FirstMeasured() + 1);
    for (const LoggedStep& step : log_.kept()) {
      result->losses.push_back(step.loss);
      result->learning_rates.push_back(step.lr);
      result->step_ends.push_back(step.end);
      if (step.step >= FirstMeasured()) result->times.push_back(step.times);
    }
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
    if (average_.has_value()) {
      GS_RETURN_IF_ERROR(average_->Import(state.average, state.average_updates));
    }
    return OpenLoader(state.epoch, state.position);
  }

  // A checkpoint is no part of any step, and its traffic and time are of none.
  absl::Status Save(bool evaluate, TrainingResult* result) {
    // A disk may take its time. Those who wait for this rank have a deadline of their own.
    const Activity::Wait wait(activity());
    GS_RETURN_IF_ERROR(clock_.Drain());
    clock_.Pause();
    const Spent before = SpentSoFar();
    if (!options_.allow_nonfinite) {
      GS_RETURN_IF_ERROR(CheckFiniteParameters(position_.step));
    }
    absl::optional<double> accuracy;
    if (evaluate) {
      GS_RETURN_IF_ERROR(ddp_->Settle(Deadline::In(kSettleTimeout)));
      GS_ASSIGN_OR_RETURN(const Evaluation evaluation, EvaluateWithAll());
      accuracy = evaluation.accuracy;
    }
    JobState state;
    state.skipped_steps = skipped_steps_;
    if (scaler_.has_value()) state.loss_scaler = scaler_->state();
    if (average_.has_value()) {
      state.average = average_->Export();
      state.average_updates = average_->updates();
    }
    GS_RETURN_IF_ERROR(checkpointer_->Save(position_, std::move(state), accuracy, *model_, device_,
                                           *ddp_, *sync_, *side_channel_));
    ++result->checkpoints;
    const Spent after = SpentSoFar();
    result->checkpoint_time += (after - before).time;
    // As if it had taken nothing.
    measured_from_ = after - (before - measured_from_);
    return absl::OkStatus();
  }

  absl::Status MeanLosses(TrainingResult* result) {
    const std::vector<double>& losses = result->losses;
    const size_t tail = std::max<size_t>(1, losses.size() / 10);
    double tail_loss = 0;
    for (size_t i = losses.size() - tail; i < losses.size(); ++i) {
      tail_loss += losses[i] / static_cast<double>(tail);
    }
    GS_ASSIGN_OR_RETURN(const std::vector<double> sums,
                        side_channel_->SumDoubles({first_loss_, tail_loss}, NewDeadline()));
    result->first_loss = sums[0] / side_channel_->world_size();
    result->final_loss = sums[1] / side_channel_->world_size();
    return absl::OkStatus();
  }

  absl::Status CheckFiniteParameters(int64_t step) {
    if (sharded_ == nullptr) return CheckFinite(Where(step), *model_);
    const auto check = [&](const std::string& name, const at::Tensor& parameter) {
      return CheckFinite(Where(step), name, parameter);
    };
    GS_RETURN_IF_ERROR(ddp_->VisitParameters(check, NewDeadline()));
    return CheckFinite(Where(step), *model_);  // for the buffers
  }

  // What follows the last step: mean losses, evaluation, the proof that all workers hold the same
  // parameters.
  absl::Status Conclude(TrainingResult* result) {
    if (!options_.allow_nonfinite) {
      GS_RETURN_IF_ERROR(CheckFiniteParameters(result->last_step));
    }
    // A job that is resumed after its last step has none.
    if (result->steps > 0) GS_RETURN_IF_ERROR(MeanLosses(result));
    GS_ASSIGN_OR_RETURN(result->epochs, tally_.Share(*side_channel_, NewDeadline()));
    if (sharded_ != nullptr) {
      GS_ASSIGN_OR_RETURN(result->params_sha256, ddp_->GatheredSha256(NewDeadline()));
    } else {
      result->params_sha256 = ddp_->ParamsSha256();
    }
    if (stage_ != nullptr) {
      GS_ASSIGN_OR_RETURN(result->params_sha256, stage_->ParamsSha256());
    }
    if (slice_ != nullptr) {
      GS_ASSIGN_OR_RETURN(result->params_sha256, slice_->ParamsSha256());
    }
    if (options_.synchronised) GS_RETURN_IF_ERROR(CompareParameters(result->params_sha256));
    if (options_.evaluate && !result->stopped) {
      GS_ASSIGN_OR_RETURN(Evaluation evaluation, EvaluateWithAll());
      result->weights_test_loss = evaluation.loss;
      result->weights_test_accuracy = evaluation.accuracy;
      if (average_.has_value()) {
        GS_RETURN_IF_ERROR(average_->Swap(*model_));
        GS_ASSIGN_OR_RETURN(evaluation, EvaluateWithAll());
        GS_RETURN_IF_ERROR(average_->Swap(*model_));
      }
      result->test_samples = evaluation.samples;
      result->test_loss = evaluation.loss;
      result->test_accuracy = evaluation.accuracy;
    }
    // Before the backend's, after which nobody would be told of a failure.
    if (stage_ != nullptr) GS_RETURN_IF_ERROR(stage_->Finish());
    if (slice_ != nullptr) GS_RETURN_IF_ERROR(slice_->Finish());
    return sync_->Shutdown(NewDeadline());
  }

  // Collective. What the model holds now, with rank 0's buffers.
  absl::StatusOr<Evaluation> EvaluateWithAll() {
    GS_RETURN_IF_ERROR(ddp_->BroadcastBuffers(NewDeadline()));
    return EvaluateOnTest(*side_channel_, Deadline::In(kEvaluationTimeout));
  }

  bool DueToKeep(int64_t step) const {
    return rank_ == 0 && options_.evaluate_every > 0 && step % options_.evaluate_every == 0;
  }

  // Copies what a later evaluation needs, on rank 0 after every so many steps.
  void KeepModel(int64_t step) {
    if (!DueToKeep(step)) return;
    clock_.Pause();
    if (average_.has_value()) {
      kept_.Keep(average_->tensors(), step);
    } else {
      kept_.Keep(*model_, step);
    }
  }

  // Rank 0 evaluates what it kept, alone, while the others wait; the model is then as before.
  absl::StatusOr<std::vector<AccuracyPoint>> EvaluateKept() {
    std::vector<AccuracyPoint> points;
    if (options_.evaluate_every == 0) return points;
    if (rank_ == 0) {
      SideChannel alone(WorkerGroup(), "curve");
      GS_RETURN_IF_ERROR(kept_.ForEach(*model_, [&](int64_t step) {
        const absl::StatusOr<Evaluation> evaluation = EvaluateOnTest(alone, Deadline::Never());
        if (!evaluation.ok()) return evaluation.status();
        points.push_back({step, kept_ends_.at(step), evaluation->accuracy});
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
  const int replica_;
  const LoaderThreads loader_threads_;
  const c10::Device device_;
  GradientSync* sync_ = nullptr;
  SideChannel* side_channel_ = nullptr;
  const JobInputs inputs_;
  OptimizerSpec optimizer_;
  std::function<int(const TensorSpec&)> group_of_;  // DdpOptions::group_of
  std::unique_ptr<ChannelMoments> moments_;         // null unless BatchNorm is synchronised
  std::shared_ptr<Model> model_;
  absl::optional<WeightAverage> average_;  // with ema_decay, after Bind()
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<BatchUpload> upload_;
  TrainingClock clock_;
  std::unique_ptr<KinetoTrace> trace_;  // null unless wanted
  SlowDown slow_down_;
  absl::optional<LossScaler> scaler_;
  at::Tensor loss_scale_;       // its scale on the device, where a captured step reads it
  MonotonicTime forward_done_;  // of the batch under way
  int64_t batches_ = 1;         // of the step under way
  std::unique_ptr<Checkpointer> checkpointer_;
  int64_t first_step_ = 1;
  JobPosition position_;  // after the step under way, or the last one
  // What was spent before the measured steps, and since then on none of them.
  Spent measured_from_;
  int64_t skipped_steps_ = 0;
  LossReader losses_;
  LossReader correct_;                 // counts of right predictions
  std::deque<double> read_losses_;     // that have come, of steps that are not reported
  std::deque<double> correct_counts_;  // likewise
  double first_loss_ = 0;
  StepLog log_;
  EpochTally tally_;
  std::deque<StepReport> unreported_;            // whose losses or ends are on their way
  KeptModels kept_;                              // rank 0, with evaluate_every
  std::map<int64_t, absl::Duration> kept_ends_;  // when their steps ended
  std::vector<MonotonicTime> gradient_done_;  // in this step, by parameter; empty unless recorded
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<StepGraph> step_graph_;       // after Bind()
  std::unique_ptr<PipelineStage> stage_;        // null without stages
  std::unique_ptr<DataParallelStep> replicas_;  // null with one replica
  std::unique_ptr<ShardedStep> sharded_;        // null unless owners alone keep parameters
  absl::Duration stage_wait_;                   // of measured steps
  std::unique_ptr<TensorSlice> slice_;          // null without slices
  // Of the link between slices, before the first measured step.
  absl::Duration slice_wait_before_;
  int64_t slice_tx_before_ = 0;
  int64_t slice_rx_before_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainerOptions& options, int rank,
                                                         int world_size) {
  const Mesh& mesh = options.pipeline.mesh;
  const bool cut = mesh.cuts_model();
  // All stages of a pipeline go through the same samples, and all slices of a model.
  const int replica = cut ? mesh.Coordinate(rank, mesh.samples()) : rank;
  const int replicas = cut ? mesh.replicas() : world_size;
  GS_ASSIGN_OR_RETURN(JobInputs inputs, OpenJobInputs(options, replica, replicas));
  auto trainer =
      std::make_unique<TrainerImpl>(options, rank, replica, world_size, std::move(inputs));
  GS_RETURN_IF_ERROR(trainer->Prepare());
  return trainer;
}

}  // namespace gradsync
