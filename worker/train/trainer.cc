#include "worker/train/trainer.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/plan/optimizer_spec.h"
#include "gradsync/ddp/distributed_data_parallel.h"
#include "gradsync/ddp/tensor_over.h"
#include "worker/models/check_slices.h"
#include "worker/models/layers.h"
#include "worker/train/batch_source.h"
#include "worker/train/channel_moments.h"
#include "worker/train/check_batch_of_one.h"
#include "worker/train/check_finite.h"
#include "worker/train/checkpointer.h"
#include "worker/train/compute_threads.h"
#include "worker/train/decay_groups.h"
#include "worker/train/evaluate.h"
#include "worker/train/forward.h"
#include "worker/train/gradient_computer.h"
#include "worker/train/job_data.h"
#include "worker/train/job_inputs.h"
#include "worker/train/job_state.h"
#include "worker/train/loss_scaler.h"
#include "worker/train/model_share.h"
#include "worker/train/pipeline_stage.h"
#include "worker/train/precision.h"
#include "worker/train/record_step.h"
#include "worker/train/sharded_step.h"
#include "worker/train/spent.h"
#include "worker/train/step_log.h"
#include "worker/train/step_reports.h"
#include "worker/train/tensor_slice.h"
#include "worker/train/training_clock.h"
#include "worker/train/weight_average.h"

namespace gradsync {
namespace {

class TrainerImpl : public Trainer {
 public:
  // `replica`: which of those that train on other samples each this rank is.
  TrainerImpl(const TrainerOptions& options, int rank, int replica, int world_size,
              JobInputs inputs)
      : options_(options),
        rank_(rank),
        replica_(replica),
        device_(TensorDevice(options.gpu.get())),
        inputs_(std::move(inputs)),
        optimizer_(options.optimizer),
        source_(options_, world_size, inputs_,
                [this](absl::string_view what, absl::Duration reading) {
                  return WaitForData(what, reading);
                }),
        clock_(options.gpu),
        reports_(ReportsOptions(), &clock_),
        gradients_(options_, inputs_, rank, replica, &source_, &reports_) {}

  absl::Status Prepare() {
    SetComputeThreads(options_.threads);
    GS_RETURN_IF_ERROR(CheckPrecision(options_.compute.precision, device_.type()));
    if (UsesGraph()) {
      GS_RETURN_IF_ERROR(CheckGraph());
      GS_RETURN_IF_ERROR(options_.gpu->UseOwnComputeStream());
    }
    GS_RETURN_IF_ERROR(ApplyMathFlags(options_.allow_tf32, device_.type()));
    LetCudnnTryAlgorithms(options_.cudnn_benchmark, device_.type());
    if (ScalesLoss()) {
      scaler_.emplace(options_.loss_scaler.value_or(LossScalerOptions()));
    }
    if (scaler_.has_value()) {
      loss_scale_ = at::empty({}, device_);
      gradients_.ScaleLossBy(loss_scale_);
    }
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
    GS_ASSIGN_OR_RETURN(ModelOptions model,
                        FitModel(options_.model, {inputs_.train, inputs_.train_tokens}));
    model.seed = options_.seed;
    const Mesh& mesh = options_.pipeline.mesh;
    if (mesh.has_slices()) {
      GS_RETURN_IF_ERROR(
          CheckSlices(model, mesh.size(MeshDimension::kTensor), options_.pipeline.split_sequence));
    }
    GS_RETURN_IF_ERROR(CheckRoomFor(model));
    GS_ASSIGN_OR_RETURN(model_, CreateModel(model));
    model_->train();
    GS_ASSIGN_OR_RETURN(group_of_,
                        ExcludeFromDecay(options_.no_weight_decay, *model_, &optimizer_));
    if (options_.sync_batchnorm && SetMomentExchange(*model_, nullptr) == 0) {
      return FlagError("sync_batchnorm", "a model with BatchNorm", options_.model.name);
    }
    if (!options_.evaluate_only) GS_RETURN_IF_ERROR(CheckBatchOfOne(options_, inputs_, *model_));
    const SamplerOptions& data = inputs_.sampler->options();
    CheckpointOptions checkpoint = options_.checkpoint;
    checkpoint.data = inputs_.identities;
    checkpoint.data_kind = KindOfData(options_.data);
    checkpoint.threads = options_.threads;
    GS_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(checkpoint, rank_, data.world_size,
                                                            data.dataset_size, inputs_.steps));
    GS_RETURN_IF_ERROR(CheckKeptBytes());
    GS_RETURN_IF_ERROR(checkpointer_->LoadWeights(*model_));
    if (checkpointer_->starts_from_weights() && !options_.allow_nonfinite) {
      GS_RETURN_IF_ERROR(CheckFiniteWeights(checkpoint.init_from, *model_));
    }
    const int slots = static_cast<int>(SlotNames(optimizer_).size()) + (options_.ema_decay > 0);
    GS_RETURN_IF_ERROR(checkpointer_->CheckRoom(*model_, slots, options_.ema_decay > 0));
    SetMemoryFormat(options_.compute, *model_);
    // One whose parameters owners keep need not fit on the device.
    if (!options_.shard_parameters) GS_RETURN_IF_ERROR(MoveModel());
    GS_RETURN_IF_ERROR(
        gradients_.Prepare(model_, model, [this] { return ExampleInputs(options_.batch_size); }));
    if (options_.evaluate_only) return absl::OkStatus();
    return source_.Open(/*epoch=*/0, /*position=*/0);
  }

  absl::Status Bind(GradientSync* sync, SideChannel* side_channel, SideChannel* workers,
                    const PipelinePlace* place, const SlicePlace* slice) override {
    sync_ = sync;
    side_channel_ = side_channel;
    // The backend only reaches ranks that train the same part of the model.
    if (!options_.synchronised || place != nullptr || slice != nullptr) {
      SideChannel& all_ranks = workers != nullptr ? *workers : *side_channel;
      GS_RETURN_IF_ERROR(checkpointer_->ShareWeights(*model_, all_ranks, options_.timeout));
    }
    GS_RETURN_IF_ERROR(MakeShare(place, slice));
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
    GS_ASSIGN_OR_RETURN(ddp.earlier_chunk_bytes,
                        checkpointer_->EarlierChunkBytes(*side_channel_, NewDeadline()));
    if (options_.record_gradients || !options_.straggler.nobody() || activity() != nullptr) {
      ddp.on_gradient = [this](int parameter) { gradients_.OnGradient(parameter); };
    }
    SideChannel* const replicas =
        share_->replicas() != nullptr ? share_->replicas() : side_channel_;
    ddp.part = share_->part();
    ddp.units = share_->units();
    const bool copies = place == nullptr && slice == nullptr && CopiesWeights();
    if (copies) ddp.copies = {ScalarTypeOf(options_.compute.precision), WeightsOfProducts(*model_)};
    GS_ASSIGN_OR_RETURN(
        ddp_, DistributedDataParallel::Create(
                  model_, sync_, options_.synchronised ? replicas : nullptr, std::move(ddp)));
    if (copies) UseCopies(*model_, [this](const std::string& name) { return ddp_->CopyOf(name); });
    if (options_.shard_parameters) GS_RETURN_IF_ERROR(MoveModel());  // what is in no bucket
    GS_RETURN_IF_ERROR(share_->Begin(ddp_.get()));
    GS_RETURN_IF_ERROR(SynchroniseNorms(workers));
    if (options_.ema_decay > 0) {
      average_.emplace(options_.ema_decay);
      GS_RETURN_IF_ERROR(average_->Begin(*model_));
    }
    gradients_.Begin(ddp_.get(), share_.get(), stage_, UsesGraph());
    return Resume();
  }

  absl::StatusOr<TrainingResult> Run(
      const std::function<void(const StepReport&)>& on_step) override {
    TrainingResult result;
    measured_from_ = SpentSoFar(*sync_);
    result.first_step = first_step_;
    result.last_step = first_step_ - 1;
    result.saved = first_step_ > 1;
    absl::optional<Activity::Work> work(absl::in_place, activity());
    const int64_t last = options_.evaluate_only ? 0 : inputs_.steps;
    for (int64_t step = first_step_; step <= last; ++step) {
      if (options_.stop_before) {
        GS_ASSIGN_OR_RETURN(result.stopped, options_.stop_before(step));
        if (result.stopped) break;
      }
      if (step == FirstMeasured()) {
        GS_RETURN_IF_ERROR(clock_.Drain());
        measured_from_ = SpentSoFar(*sync_);
        traffic_before_ = share_->traffic();
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
      reports_.Add(std::move(report));
      {
        // Whoever reads what is written may take its time.
        const Activity::Wait wait(activity());
        if (trace_ != nullptr) GS_RETURN_IF_ERROR(trace_->AfterStep(step));
        GS_RETURN_IF_ERROR(ReportSteps(MostPending(step), on_step));
      }
      result.last_step = step;
      GS_RETURN_IF_ERROR(AfterStep(step, on_step, &result));
    }
    if (result.stopped && !result.saved && result.last_step > 0 &&
        !options_.checkpoint.folder.empty()) {
      GS_RETURN_IF_ERROR(Save(absl::nullopt, &result));
      result.saved = true;
    }
    work.reset();
    GS_RETURN_IF_ERROR(clock_.Drain());
    GS_RETURN_IF_ERROR(ReportSteps(/*most_pending=*/0, on_step));
    FillSteps(&result);
    const Spent measured = SpentSoFar(*sync_) - measured_from_;
    result.measured = measured.time;
    result.cpu = measured.cpu;
    result.wire = measured.wire;
    result.staleness = sync_->staleness();
    result.skipped_steps = skipped_steps_;
    result.share_traffic = share_->traffic() - traffic_before_;
    if (moments_ != nullptr) {
      result.moment_exchanges = moments_->calls();
      result.moment_wait = moments_->waited();
    }
    if (scaler_.has_value()) result.loss_scale = scaler_->scale();
    // Under ssp and asp others may have many steps to go, but they live: a lost one ends the wait.
    GS_RETURN_IF_ERROR(ddp_->Settle(Deadline::In(kSettleTimeout)));
    GS_RETURN_IF_ERROR(EvaluateKept(&result));
    GS_RETURN_IF_ERROR(Conclude(&result));
    return result;
  }

  const Plan& plan() const override { return ddp_->plan(); }

  int loader_threads() const override { return source_.loader_threads(); }

  int64_t first_step() const override { return first_step_; }

  int64_t steps_per_epoch() const override { return inputs_.steps_per_epoch; }

  const std::map<std::string, DataIdentity>& data() const override { return inputs_.identities; }

  std::vector<std::string> data_remarks() const override {
    std::vector<std::string> remarks;
    // An evaluation alone has one split in both places.
    const ImageDataset* const test = inputs_.test == inputs_.train ? nullptr : inputs_.test.get();
    for (const ImageDataset* split :
         {static_cast<const ImageDataset*>(inputs_.train.get()), test}) {
      if (split == nullptr) continue;
      for (std::string& line : split->remarks()) remarks.push_back(std::move(line));
    }
    return remarks;
  }

  std::vector<std::string> notices() const override { return NoticesOn(options_, inputs_); }

  std::string split() const override {
    return stage_ == nullptr ? gradients_.split() : SplitToString(stage_->split());
  }

 private:
  absl::Status MakeShare(const PipelinePlace* place, const SlicePlace* slice) {
    if (place != nullptr) return MakeStage(*place);
    if (slice != nullptr) return MakeSlice(*slice);
    if (options_.shard_parameters) {
      share_ = std::make_unique<ShardedStep>(options_.compute, model_, options_.timeout);
    } else {
      share_ = std::make_unique<ModelShare>(options_.compute, model_);
    }
    return absl::OkStatus();
  }

  absl::Status MakeStage(const PipelinePlace& place) {
    PipelineStageOptions options;
    options.pipeline = options_.pipeline;
    options.compute = options_.compute;
    options.timeout = options_.timeout;
    options.example = [this] { return ExampleInputs(options_.batch_size); };
    GS_ASSIGN_OR_RETURN(auto stage, PipelineStage::Create(options, place, model_, side_channel_));
    stage_ = stage.get();
    share_ = std::move(stage);
    return absl::OkStatus();
  }

  absl::Status MakeSlice(const SlicePlace& place) {
    TensorSliceOptions slice;
    slice.compute = options_.compute;
    slice.split_sequence = options_.pipeline.split_sequence;
    slice.timeout = options_.timeout;
    slice.activity = activity();
    GS_ASSIGN_OR_RETURN(share_, TensorSlice::Create(slice, place, model_));
    return absl::OkStatus();
  }

  bool CopiesWeights() const {
    return options_.compute.weight_copies && options_.compute.precision != Precision::kFp32 &&
           options_.data_parallel == 1 && !options_.shard_parameters;
  }

  // Gradients are not seen in a replayed step, nor can it wait for others where buckets take turns.
  bool UsesGraph() const {
    return options_.cuda_graph && options_.gpu != nullptr && options_.gpu->is_cuda() &&
           !options_.record_gradients && options_.plan.slots.gradients == 0;
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

  // Before minutes are spent on weights beside which there is no room for what else a step needs.
  // A rank that trains a part of the model on the host takes less.
  absl::Status CheckRoomFor(const ModelOptions& model) const {
    const bool whole = options_.gpu == nullptr && !options_.evaluate_only &&
                       !options_.shard_parameters && !options_.pipeline.mesh.cuts_model();
    if (!whole) return absl::OkStatus();  // CreateModel() looks for the weights' own.
    const int slots = options_.updates_here ? static_cast<int>(SlotNames(optimizer_).size()) : 0;
    const int gradients = options_.plan.slots.gradients == 0 ? 1 : 0;  // else a few buckets' alone
    return CheckModelMemory(model,
                            gradients > 0 && slots > 0
                                ? "weights, gradients and the optimizer's state"
                                : "weights and what a step needs beside them",
                            1 + gradients + slots + (options_.ema_decay > 0 ? 1 : 0));
  }

  absl::Status MoveModel() {
    try {
      model_->to(device_);
    } catch (const std::exception& e) {
      return absl::InternalError(
          absl::StrCat("moving the model to ", device_.str(), ": ", FirstLine(e.what())));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTrace(int64_t first, int64_t last) const {
    if (last <= inputs_.steps) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("--trace_steps: expected steps of the job's ",
                                                   inputs_.steps, ", found ", first, " to ", last));
  }

  int64_t FirstMeasured() const { return first_step_ + options_.warmup_steps; }

  Activity* activity() const { return options_.activity.get(); }

  Deadline NewDeadline() const { return Deadline::In(options_.timeout); }

  // While a step waits for its batch. A disk may not answer, and the thread that asked it cannot be
  // called back; but the job can end and say why.
  absl::Status WaitForData(absl::string_view what, absl::Duration reading) {
    const std::string so_far =
        absl::StrCat(what, " has been being read for ",
                     absl::FormatDuration(absl::Trunc(reading, absl::Seconds(1))));
    if (sync_ != nullptr && options_.synchronised && !sync_->status().ok()) {
      const absl::Status failed = sync_->status();
      if (reading < kOddRead) return failed;
      return absl::Status(failed.code(), absl::StrCat(failed.message(), "; ", so_far));
    }
    if (reading > options_.timeout) {
      return absl::DeadlineExceededError(absl::StrCat(so_far, " (--timeout)"));
    }
    if (options_.interrupted && options_.interrupted() && reading > kOddRead) {
      return absl::CancelledError(absl::StrCat("ended by a signal while ", so_far));
    }
    if (reading < options_.stall_after) {
      data_stalled_ = false;
    } else if (!data_stalled_ && options_.on_data_stall) {
      data_stalled_ = true;
      options_.on_data_stall(what, reading);
    }
    return absl::OkStatus();
  }

  bool OfTokens() const { return inputs_.train_tokens != nullptr; }

  absl::StatusOr<Evaluation> EvaluateOnTest(SideChannel& side_channel, Deadline deadline) {
    const Mesh& mesh = options_.pipeline.mesh;
    EvaluationShare own;
    own.batch_size = options_.batch_size;
    own.threads = source_.threads();
    own.prefetch_bytes = options_.prefetch_bytes;
    own.rank = mesh.cuts_model() ? replica_ : side_channel.rank();
    own.ranks = mesh.cuts_model() ? mesh.replicas() : side_channel.world_size();
    own.logits = [this](const at::Tensor& inputs) { return share_->TestLogits(inputs); };
    own.check = [this] { return sync_->status(); };
    own.while_waiting = [this](absl::string_view what, absl::Duration reading) {
      return WaitForData(what, reading);
    };
    own.in_step = share_->tests_in_step();
    own.activity = activity();
    if (OfTokens()) {
      return EvaluateModel(*model_, inputs_.test_tokens, own, side_channel, deadline);
    }
    return EvaluateModel(*model_, inputs_.test, own, side_channel, deadline);
  }

  // Where the model is.
  at::Tensor ExampleInputs(int64_t samples) const {
    const c10::Device device = model_->parameters()[0].device();
    if (OfTokens()) {
      return at::zeros({samples, inputs_.train_tokens->context()}, at::kLong).to(device);
    }
    const ImageShape shape = inputs_.train->shape();
    return at::randn({samples, shape.channels, shape.height, shape.width}).to(device);
  }

  // Two images are the fewest with which BatchNorm has a variance at a 1x1 feature map.
  void ThrowAwayStep() {
    const at::Tensor inputs = ExampleInputs(2);
    const at::Tensor labels =
        OfTokens() ? inputs
                   : at::randint(inputs_.train->classes(), {2}, at::kLong).to(inputs.device());
    share_->Loss(Forward(options_.compute, *model_, inputs), labels, /*label_smoothing=*/0)
        .loss.backward();
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
    if (options_.pool_statistics) PoolStatistics(*model_, true);
    const absl::Status computed = gradients_.Run(step, report);
    if (options_.pool_statistics) PoolStatistics(*model_, false);
    // LibTorch's words about it have lost the code.
    if (moments_ != nullptr) GS_RETURN_IF_ERROR(moments_->status());
    GS_RETURN_IF_ERROR(share_->status());
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
    times.update += gradients_.Stretch(times.update);
    GS_RETURN_IF_ERROR(UpdateAverage(&times.update));
    GS_RETURN_IF_ERROR(clock_.EndStep());
    RecordStep(options_.recorder.get(), report->step, begin, finished);
    return absl::OkStatus();
  }

  absl::Status UpdateAverage(absl::Duration* time) {
    if (!average_.has_value() || ddp_->skipped()) return absl::OkStatus();
    const MonotonicTime start = MonotonicTime::Now();
    GS_RETURN_IF_ERROR(average_->Update(*model_));
    *time += MonotonicTime::Now() - start;
    return absl::OkStatus();
  }

  // Losses that may be on their way after a step.
  size_t MostPending(int64_t step) const {
    if (!options_.report_all_after) return StepReports::kMostPending;
    return options_.report_all_after(step) ? 0 : std::numeric_limits<size_t>::max();
  }

  std::string Where(int64_t step) const {
    return absl::StrCat("step ", step, " of ", inputs_.steps, ", rank ", rank_);
  }

  absl::Status ReportSteps(size_t most_pending, const StepReports::OnStep& on_step) {
    return reports_.Take(most_pending, [&](const StepReport& report) {
      newest_end_ = report.end;
      if (KeepsModelOf(report.step)) kept_[report.step].end = report.end;
      on_step(report);
    });
  }

  StepReportsOptions ReportsOptions() {
    StepReportsOptions reports;
    // With a loss scale steps may be skipped for a while: LossScaler has the last word.
    reports.check_finite = !ScalesLoss() && !options_.allow_nonfinite;
    reports.where = [this](int64_t step) { return Where(step); };
    if (options_.gpu != nullptr) {
      reports.exposed = [this](int64_t step) { return ddp_->Exposed(step); };
    }
    return reports;
  }

  bool ScalesLoss() const {
    return options_.loss_scaler.has_value() || options_.compute.precision == Precision::kFp16;
  }

  void FillSteps(TrainingResult* result) const {
    const StepLog& log = reports_.log();
    result->step_stride = log.stride();
    result->steps = log.added();
    result->measured_steps = std::max<int64_t>(0, result->last_step - FirstMeasured() + 1);
    for (const LoggedStep& step : log.kept()) {
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
    if (options_.evaluate_only) return TakeAverage(state);
    if (state.step == 0) return absl::OkStatus();
    first_step_ = state.step + 1;
    skipped_steps_ = state.skipped_steps;
    if (scaler_.has_value() && state.loss_scaler.has_value()) scaler_->Restore(*state.loss_scaler);
    if (average_.has_value()) {
      GS_RETURN_IF_ERROR(average_->Import(state.average, state.average_updates));
    }
    return source_.Open(state.epoch, state.position);
  }

  // An evaluation alone judges the average of the checkpoint, whether or not the flags ask for one.
  absl::Status TakeAverage(const JobState& state) {
    average_.reset();
    if (state.average.empty()) return absl::OkStatus();
    if (options_.shard_parameters) {
      return FlagError("zero", "0 to 2 with --evaluate_only of a checkpoint with an average", "3");
    }
    average_.emplace(options_.ema_decay);
    GS_RETURN_IF_ERROR(average_->Begin(*model_));
    return average_->Import(state.average, state.average_updates);
  }

  // What follows a step: evaluations and a checkpoint, if they are due.
  absl::Status AfterStep(int64_t step, const StepReports::OnStep& on_step, TrainingResult* result) {
    result->saved = checkpointer_->Due(gradients_.position());
    if (KeepsModelOf(step)) KeepModel(step);
    // Rank 0's result is the job's, where workers train by themselves.
    const bool point =
        options_.one_pace && DueToEvaluate(step) && (options_.synchronised || rank_ == 0);
    absl::optional<Evaluations> tested;
    if (point || (result->saved && options_.checkpoint.best)) {
      GS_RETURN_IF_ERROR(clock_.Drain());
      GS_RETURN_IF_ERROR(ReportSteps(/*most_pending=*/0, on_step));  // for when the step ended
      const auto evaluate = [&]() -> absl::Status {
        GS_ASSIGN_OR_RETURN(tested, EvaluateWithAll());
        return absl::OkStatus();
      };
      GS_RETURN_IF_ERROR(BesideSteps(evaluate, point ? nullptr : &result->checkpoint_time));
      newest_test_ = {step, *tested};
    }
    if (point) AddPoint({step, newest_end_, *tested}, result);
    return result->saved ? Save(tested, result) : absl::OkStatus();
  }

  void AddPoint(const EvaluationPoint& point, TrainingResult* result) const {
    result->evaluations.push_back(point);
    if (rank_ == 0 && options_.on_evaluation) options_.on_evaluation(point);
  }

  // Collective. What `body` does is no part of any step, and its traffic and time are of none.
  absl::Status BesideSteps(const std::function<absl::Status()>& body, absl::Duration* time) {
    // A disk may take its time. Those who wait for this rank have a deadline of their own.
    const Activity::Wait wait(activity());
    GS_RETURN_IF_ERROR(clock_.Drain());
    clock_.Pause();
    const Spent before = SpentSoFar(*sync_);
    if (!options_.allow_nonfinite) {
      GS_RETURN_IF_ERROR(
          share_->CheckFiniteParameters(Where(gradients_.position().step), NewDeadline()));
    }
    // Under asp the slowest may be far behind.
    GS_RETURN_IF_ERROR(ddp_->Settle(Deadline::In(kSettleTimeout)));
    GS_RETURN_IF_ERROR(body());
    const Spent after = SpentSoFar(*sync_);
    if (time != nullptr) *time += (after - before).time;
    // As if it had taken nothing.
    measured_from_ = after - (before - measured_from_);
    return absl::OkStatus();
  }

  absl::Status Save(const absl::optional<Evaluations>& tested, TrainingResult* result) {
    ++result->checkpoints;
    return BesideSteps([&] { return WriteCheckpoint(tested); }, &result->checkpoint_time);
  }

  absl::Status WriteCheckpoint(const absl::optional<Evaluations>& tested) {
    JobState state;
    state.skipped_steps = skipped_steps_;
    if (scaler_.has_value()) state.loss_scaler = scaler_->state();
    if (average_.has_value()) {
      state.average = average_->Export();
      state.average_updates = average_->updates();
    }
    return checkpointer_->Save(gradients_.position(), std::move(state), tested, *model_, device_,
                               *ddp_, *sync_, *side_channel_);
  }

  absl::Status MeanLosses(TrainingResult* result) {
    const std::vector<double>& losses = result->losses;
    const size_t tail = std::max<size_t>(1, losses.size() / 10);
    double tail_loss = 0;
    for (size_t i = losses.size() - tail; i < losses.size(); ++i) {
      tail_loss += losses[i] / static_cast<double>(tail);
    }
    GS_ASSIGN_OR_RETURN(
        const std::vector<double> sums,
        side_channel_->SumDoubles({reports_.first_loss(), tail_loss}, NewDeadline()));
    result->first_loss = sums[0] / side_channel_->world_size();
    result->final_loss = sums[1] / side_channel_->world_size();
    return absl::OkStatus();
  }

  // What follows the last step: mean losses, evaluation, the proof that all workers hold the same
  // parameters.
  absl::Status Conclude(TrainingResult* result) {
    if (!options_.allow_nonfinite) {
      GS_RETURN_IF_ERROR(share_->CheckFiniteParameters(Where(result->last_step), NewDeadline()));
    }
    // A job that is resumed after its last step has none.
    if (result->steps > 0) GS_RETURN_IF_ERROR(MeanLosses(result));
    GS_ASSIGN_OR_RETURN(result->epochs, reports_.tally().Share(*side_channel_, NewDeadline()));
    GS_ASSIGN_OR_RETURN(result->params_sha256, share_->ParamsSha256(NewDeadline()));
    if (options_.synchronised) GS_RETURN_IF_ERROR(CompareParameters(result->params_sha256));
    result->averaged = average_.has_value();
    if (options_.evaluate_only || (options_.evaluate && !result->stopped)) {
      // One that was made after the last step is as good.
      if (newest_test_.first != result->last_step || result->steps == 0) {
        GS_ASSIGN_OR_RETURN(newest_test_.second, EvaluateWithAll());
      }
      const Evaluations& tested = newest_test_.second;
      result->weights_test_loss = tested.weights.loss;
      result->weights_test_accuracy = tested.weights.accuracy;
      result->test_samples = tested.judged().samples;
      result->test_loss = tested.judged().loss;
      result->test_accuracy = tested.judged().accuracy;
    }
    // Before the backend's, after which nobody would be told of a failure.
    GS_RETURN_IF_ERROR(share_->Finish());
    return sync_->Shutdown(NewDeadline());
  }

  // Collective. What the model holds now and its average, if there is one, with rank 0's buffers.
  absl::StatusOr<Evaluations> EvaluateWithAll() {
    Evaluations tested;
    GS_ASSIGN_OR_RETURN(tested.weights, EvaluateModelNow());
    if (!average_.has_value()) return tested;
    GS_RETURN_IF_ERROR(SwapAverage());
    GS_ASSIGN_OR_RETURN(tested.average, EvaluateModelNow());
    GS_RETURN_IF_ERROR(SwapAverage());
    return tested;
  }

  absl::StatusOr<Evaluation> EvaluateModelNow() {
    GS_RETURN_IF_ERROR(ddp_->BroadcastBuffers(NewDeadline()));
    return EvaluateOnTest(*side_channel_, Deadline::In(kEvaluationTimeout));
  }

  absl::Status SwapAverage() {
    GS_RETURN_IF_ERROR(average_->Swap(*model_));
    return ddp_->RefreshCopies();
  }

  // A model as it was after some step, on rank 0.
  struct KeptModel {
    std::vector<at::Tensor> tensors;  // TensorsOf() it
    absl::Duration end;               // of the step, when that is known
  };

  static std::vector<at::Tensor> TensorsOf(const Model& model) {
    std::vector<at::Tensor> tensors = model.parameters();
    for (const at::Tensor& buffer : model.buffers()) tensors.push_back(buffer);
    return tensors;
  }

  static std::vector<at::Tensor> CopyOf(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
    return copies;
  }

  absl::Status SetModel(const std::vector<at::Tensor>& values) {
    const std::vector<at::Tensor> tensors = TensorsOf(*model_);
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(values[i]);
    return ddp_->RefreshCopies();
  }

  bool DueToEvaluate(int64_t step) const {
    return options_.evaluate_every > 0 && step % options_.evaluate_every == 0;
  }

  bool KeepsModelOf(int64_t step) const {
    return rank_ == 0 && !options_.one_pace && DueToEvaluate(step);
  }

  // So that what is kept until the end is bounded.
  absl::Status CheckKeptBytes() const {
    if (options_.one_pace || options_.evaluate_every == 0) return absl::OkStatus();
    int64_t bytes = 0;
    for (const at::Tensor& tensor : TensorsOf(*model_)) {
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
    const int64_t most = std::max<int64_t>(1, kMostKeptBytes / std::max<int64_t>(1, bytes));
    if (inputs_.steps / options_.evaluate_every <= most) return absl::OkStatus();
    return FlagError(
        "evaluate_every",
        absl::StrCat("at least ", inputs_.steps / (most + 1) + 1, " in a job of ", inputs_.steps,
                     " steps under ssp or asp, where rank 0 keeps a model of ", bytes / 1000,
                     " kB for each evaluation until the end, and at most ", kMostKeptBytes >> 20,
                     " MiB of them"),
        absl::StrCat(options_.evaluate_every));
  }

  // Copies what a later evaluation needs: one now would hold up rank 0, while others go on.
  void KeepModel(int64_t step) {
    clock_.Pause();
    kept_[step].tensors = CopyOf(TensorsOf(*model_));
  }

  // Rank 0 evaluates what it kept, alone, while the others wait; the model is then as before.
  absl::Status EvaluateKept(TrainingResult* result) {
    if (options_.one_pace || options_.evaluate_every == 0) return absl::OkStatus();
    if (!kept_.empty()) {
      SideChannel alone(WorkerGroup(), "curve");
      const std::vector<at::Tensor> last = CopyOf(TensorsOf(*model_));
      for (const auto& [step, kept] : kept_) {
        GS_RETURN_IF_ERROR(SetModel(kept.tensors));
        Evaluations tested;
        GS_ASSIGN_OR_RETURN(tested.weights, EvaluateOnTest(alone, Deadline::Never()));
        AddPoint({step, kept.end, tested}, result);
      }
      GS_RETURN_IF_ERROR(SetModel(last));
    }
    return side_channel_->Barrier(Deadline::In(kEvaluationTimeout));
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
      return absl::StrCat(side_channel_->Name(0), " has ", all[0], ", ", side_channel_->Name(rank),
                          " has ", all[rank]);
    }
    return std::string();
  }

  // For others, who may be slow: whoever is lost, stopped or stuck is noticed by the group's watch.
  static constexpr absl::Duration kEvaluationTimeout = absl::Hours(24);
  static constexpr absl::Duration kSettleTimeout = absl::Hours(24);
  static constexpr absl::Duration kOddRead = absl::Seconds(1);  // Most files take far less.
  static constexpr int64_t kMostKeptBytes = int64_t{1} << 30;

  const TrainerOptions options_;
  const int rank_;
  const int replica_;
  const c10::Device device_;
  GradientSync* sync_ = nullptr;
  SideChannel* side_channel_ = nullptr;
  const JobInputs inputs_;
  OptimizerSpec optimizer_;
  std::function<int(const TensorSpec&)> group_of_;  // DdpOptions::group_of
  std::unique_ptr<ChannelMoments> moments_;         // null unless BatchNorm is synchronised
  std::shared_ptr<Model> model_;
  absl::optional<WeightAverage> average_;  // with ema_decay, after Bind()
  bool data_stalled_ = false;              // on_data_stall was told
  BatchSource source_;
  TrainingClock clock_;
  StepReports reports_;
  std::unique_ptr<KinetoTrace> trace_;  // null unless wanted
  absl::optional<LossScaler> scaler_;
  at::Tensor loss_scale_;  // its scale on the device, where a captured step reads it
  std::unique_ptr<Checkpointer> checkpointer_;
  int64_t first_step_ = 1;
  // What was spent before the measured steps, and since then on none of them.
  Spent measured_from_;
  int64_t skipped_steps_ = 0;
  absl::Duration newest_end_;  // StepReport::end of the newest step that was reported
  std::pair<int64_t, Evaluations> newest_test_ = {0, {}};  // after which step
  std::map<int64_t, KeptModel> kept_;                      // rank 0, with evaluate_every, by step
  std::unique_ptr<DistributedDataParallel> ddp_;
  std::unique_ptr<ModelShare> share_;  // after Bind()
  PipelineStage* stage_ = nullptr;     // the share, where that is a stage
  ShareTraffic traffic_before_;        // the first measured step
  GradientComputer gradients_;         // uses the above
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
