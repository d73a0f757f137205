#include "worker/train/training_job.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "gradsync/ddp/tensor_over.h"
#include "worker/models/layers.h"
#include "worker/models/model_options.h"
#include "worker/train/check_finite.h"
#include "worker/train/compute_options.h"
#include "worker/train/decay_groups.h"
#include "worker/train/forward.h"
#include "worker/train/job_inputs.h"
#include "worker/train/sharded_step.h"
#include "worker/train/tensor_slice.h"

namespace gradsync {
namespace {

constexpr absl::Duration kOddRead = absl::Seconds(1);  // Most files take far less.

// Of models that rank 0 keeps until the end.
constexpr int64_t kMostKeptBytes = int64_t{1} << 30;

}  // namespace

TrainingJob::TrainingJob(const TrainerOptions& options, int rank, int replica, int world_size,
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

StepReportsOptions TrainingJob::ReportsOptions() {
  StepReportsOptions reports;
  // With a loss scale steps may be skipped for a while: LossScaler has the last word.
  reports.check_finite = !ScalesLoss() && !options_.allow_nonfinite;
  reports.where = [this](int64_t step) { return Where(step); };
  if (options_.gpu != nullptr) {
    reports.exposed = [this](int64_t step) { return ddp_->Exposed(step); };
  }
  return reports;
}

bool TrainingJob::ScalesLoss() const {
  return options_.loss_scaler.has_value() || options_.compute.precision == Precision::kFp16;
}

absl::Status TrainingJob::Prepare() {
  GS_RETURN_IF_ERROR(TakeComputeThreads(options_.threads));
  GS_RETURN_IF_ERROR(CheckPrecision(options_.compute.precision, device_.type()));
  GS_RETURN_IF_ERROR(PrepareSteps());
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
  GS_ASSIGN_OR_RETURN(group_of_, ExcludeFromDecay(options_.no_weight_decay, *model_, &optimizer_));
  if (options_.sync_batchnorm && SetMomentExchange(*model_, nullptr) == 0) {
    return FlagError("sync_batchnorm", "a model with BatchNorm", options_.model.name);
  }
  if (!options_.evaluate_only) GS_RETURN_IF_ERROR(CheckBatchOfOne(options_, inputs_, *model_));
  GS_RETURN_IF_ERROR(PrepareCheckpoints());
  SetMemoryFormat(options_.compute, *model_);
  // One whose parameters owners keep need not fit on the device.
  if (!options_.shard_parameters) GS_RETURN_IF_ERROR(MoveModel());
  GS_RETURN_IF_ERROR(
      gradients_.Prepare(model_, model, [this] { return ExampleInputs(options_.batch_size); }));
  if (options_.evaluate_only) return absl::OkStatus();
  return source_.Open(/*epoch=*/0, /*position=*/0);
}

// What steps are computed, scaled and recorded with.
absl::Status TrainingJob::PrepareSteps() {
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
    GS_RETURN_IF_ERROR(CheckTrace(options_.recorder->first_step(), options_.recorder->last_step()));
  }
  if (options_.trace.wanted()) {
    const TraceOptions& trace = options_.trace;
    GS_RETURN_IF_ERROR(CheckTrace(trace.first_step, trace.first_step + trace.steps - 1));
    GS_ASSIGN_OR_RETURN(trace_,
                        KinetoTrace::Create(options_.trace, options_.gpu, options_.timeout));
  }
  return absl::OkStatus();
}

// And the weights that the job starts from.
absl::Status TrainingJob::PrepareCheckpoints() {
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
  return absl::OkStatus();
}

// Gradients are not seen in a replayed step, nor can it wait for others where buckets take turns.
bool TrainingJob::UsesGraph() const {
  return options_.cuda_graph && options_.gpu != nullptr && options_.gpu->is_cuda() &&
         !options_.record_gradients && options_.plan.slots.gradients == 0;
}

// A graph has the work of one batch, and none that waits for peers.
absl::Status TrainingJob::CheckGraph() const {
  const std::string with = options_.accumulate > 1   ? "--accumulate"
                           : options_.sync_batchnorm ? "--sync_batchnorm"
                                                     : "";
  if (with.empty()) return absl::OkStatus();
  return FlagError("cuda_graph", absl::StrCat("false on a GPU with ", with), "true");
}

absl::Status TrainingJob::CheckTrace(int64_t first, int64_t last) const {
  if (last <= inputs_.steps) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--trace_steps: expected steps of the job's ",
                                                 inputs_.steps, ", found ", first, " to ", last));
}

// Before minutes are spent on weights beside which there is no room for what else a step needs.
// A rank that trains a part of the model on the host takes less.
absl::Status TrainingJob::CheckRoomFor(const ModelOptions& model) const {
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

// So that what is kept until the end is bounded.
absl::Status TrainingJob::CheckKeptBytes() const {
  if (options_.one_pace || options_.evaluate_every == 0) return absl::OkStatus();
  int64_t bytes = 0;
  for (const at::Tensor& parameter : model_->parameters()) {
    bytes += static_cast<int64_t>(parameter.nbytes());
  }
  for (const at::Tensor& buffer : model_->buffers()) {
    bytes += static_cast<int64_t>(buffer.nbytes());
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

absl::Status TrainingJob::MoveModel() {
  try {
    model_->to(device_);
  } catch (const std::exception& e) {
    return absl::InternalError(
        absl::StrCat("moving the model to ", device_.str(), ": ", FirstLine(e.what())));
  }
  return absl::OkStatus();
}

// Where the model is.
at::Tensor TrainingJob::ExampleInputs(int64_t samples) const {
  const c10::Device device = model_->parameters()[0].device();
  if (OfTokens()) {
    return at::zeros({samples, inputs_.train_tokens->context()}, at::kLong).to(device);
  }
  const ImageShape shape = inputs_.train->shape();
  return at::randn({samples, shape.channels, shape.height, shape.width}).to(device);
}

absl::Status TrainingJob::Bind(GradientSync* sync, SideChannel* side_channel, SideChannel* workers,
                               const PipelinePlace* place, const SlicePlace* slice) {
  sync_ = sync;
  side_channel_ = side_channel;
  // The backend only reaches ranks that train the same part of the model.
  if (!options_.synchronised || place != nullptr || slice != nullptr) {
    SideChannel& all_ranks = workers != nullptr ? *workers : *side_channel;
    GS_RETURN_IF_ERROR(checkpointer_->ShareWeights(*model_, all_ranks, options_.timeout));
  }
  GS_RETURN_IF_ERROR(MakeShare(place, slice));
  GS_RETURN_IF_ERROR(MakeDdp(/*whole=*/place == nullptr && slice == nullptr));
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

absl::Status TrainingJob::MakeShare(const PipelinePlace* place, const SlicePlace* slice) {
  if (place != nullptr) return MakeStage(*place);
  if (slice != nullptr) return MakeSlice(*slice);
  if (options_.shard_parameters) {
    share_ = std::make_unique<ShardedStep>(options_.compute, model_, options_.timeout);
  } else {
    share_ = std::make_unique<ModelShare>(options_.compute, model_);
  }
  return absl::OkStatus();
}

absl::Status TrainingJob::MakeStage(const PipelinePlace& place) {
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

absl::Status TrainingJob::MakeSlice(const SlicePlace& place) {
  TensorSliceOptions slice;
  slice.compute = options_.compute;
  slice.split_sequence = options_.pipeline.split_sequence;
  slice.timeout = options_.timeout;
  slice.activity = activity();
  GS_ASSIGN_OR_RETURN(share_, TensorSlice::Create(slice, place, model_));
  return absl::OkStatus();
}

absl::Status TrainingJob::MakeDdp(bool whole) {
  DdpEngineOptions ddp;
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
  SideChannel* const replicas = share_->replicas() != nullptr ? share_->replicas() : side_channel_;
  ddp.part = share_->part();
  ddp.units = share_->units();
  const bool copies = whole && CopiesWeights();
  if (copies) ddp.copies = {ScalarTypeOf(options_.compute.precision), WeightsOfProducts(*model_)};
  GS_ASSIGN_OR_RETURN(
      ddp_,
      DdpEngine::Create(model_, sync_, options_.synchronised ? replicas : nullptr, std::move(ddp)));
  if (copies) UseCopies(*model_, [this](const std::string& name) { return ddp_->CopyOf(name); });
  return absl::OkStatus();
}

bool TrainingJob::CopiesWeights() const {
  return options_.compute.weight_copies && options_.compute.precision != Precision::kFp32 &&
         options_.data_parallel == 1 && !options_.shard_parameters;
}

// After rank 0 has run a step alone, to see the order of gradients.
absl::Status TrainingJob::SynchroniseNorms(SideChannel* channel) {
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

// Ranks that compute in different types would train, but nobody could say what.
absl::Status TrainingJob::ComparePrecisions() {
  if (!options_.synchronised) return absl::OkStatus();
  const std::string mine =
      absl::StrCat("--precision=", PrecisionName(options_.compute.precision),
                   options_.allow_tf32 ? " --tf32" : "", scaler_.has_value() ? " scaled" : "");
  GS_ASSIGN_OR_RETURN(const std::string difference, DifferenceTo(mine));
  if (difference.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("expected the same precision on all workers, ", difference));
}

absl::StatusOr<std::string> TrainingJob::DifferenceTo(const std::string& mine) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      side_channel_->AllGather(mine, NewDeadline()));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::StrCat(side_channel_->Name(0), " has ", all[0], ", ", side_channel_->Name(rank),
                        " has ", all[rank]);
  }
  return std::string();
}

// Two images are the fewest with which BatchNorm has a variance at a 1x1 feature map.
void TrainingJob::ThrowAwayStep() {
  const at::Tensor inputs = ExampleInputs(2);
  const at::Tensor labels =
      OfTokens() ? inputs
                 : at::randint(inputs_.train->classes(), {2}, at::kLong).to(inputs.device());
  share_->Loss(Forward(options_.compute, *model_, inputs), labels, /*label_smoothing=*/0)
      .loss.backward();
}

// Goes on where a checkpoint left the job, if it is to.
absl::Status TrainingJob::Resume() {
  GS_ASSIGN_OR_RETURN(const JobState state,
                      checkpointer_->Resume(*model_, device_, *ddp_, *sync_, *side_channel_,
                                            Deadline::In(kLongWait)));
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
absl::Status TrainingJob::TakeAverage(const JobState& state) {
  average_.reset();
  if (state.average.empty()) return absl::OkStatus();
  if (options_.shard_parameters) {
    return FlagError("zero", "0 to 2 with --evaluate_only of a checkpoint with an average", "3");
  }
  average_.emplace(options_.ema_decay);
  GS_RETURN_IF_ERROR(average_->Begin(*model_));
  return average_->Import(state.average, state.average_updates);
}

std::string TrainingJob::Where(int64_t step) const {
  return absl::StrCat("step ", step, " of ", inputs_.steps, ", rank ", rank_);
}

// A disk may not answer, and the thread that asked it cannot be
// called back; but the job can end and say why.
absl::Status TrainingJob::WaitForData(absl::string_view what, absl::Duration reading) {
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

}  // namespace gradsync
