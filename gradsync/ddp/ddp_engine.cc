#include "gradsync/ddp/ddp_engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/module_state.h"
#include "gradsync/ddp/plan_agreement.h"
#include "gradsync/ddp/tensor_over.h"
#include "torch/nn/module.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<DdpEngine>> DdpEngine::Create(
    std::shared_ptr<torch::nn::Module> module, GradientSync* sync, SideChannel* side_channel,
    DdpEngineOptions options) {
  options.plan.world_size = side_channel == nullptr ? 1 : side_channel->world_size();
  GS_RETURN_IF_ERROR(CheckOptions(options, sync));
  if (module == nullptr) return absl::InvalidArgumentError("module: expected one, found null");
  const absl::StatusOr<std::vector<int>> own_order =
      ObserveOrder(*module, options, *sync, side_channel);
  // Only for waits on peers: observing the order is this rank's own work and may be slow.
  const Deadline deadline = Deadline::In(options.timeout);
  GS_ASSIGN_OR_RETURN(Plan plan,
                      AgreeOnPlan(own_order, *module, *sync, side_channel, deadline, &options));
  std::unique_ptr<DdpEngine> ddp(
      new DdpEngine(std::move(module), sync, side_channel, std::move(options), std::move(plan)));
  GS_RETURN_IF_ERROR(ddp->Bind(deadline));
  return ddp;
}

DdpEngine::DdpEngine(std::shared_ptr<torch::nn::Module> module, GradientSync* sync,
                     SideChannel* side_channel, DdpEngineOptions options, Plan plan)
    : module_(std::move(module)),
      sync_(sync),
      side_channel_(side_channel),
      options_(std::move(options)),
      plan_(std::move(plan)) {}

DdpEngine::~DdpEngine() {
  if (in_step_)
    sync_->Abort(absl::CancelledError("the wrapper was destroyed in the middle of a step"));
}

absl::Status DdpEngine::Bind(Deadline deadline) {
  GS_ASSIGN_OR_RETURN(buckets_, sync_->Bind(plan_, deadline));
  GS_RETURN_IF_ERROR(BindParameters(deadline));
  GS_ASSIGN_OR_RETURN(exchange_,
                      StepExchange::Create(plan_, options_, buckets_, parameters_, sync_));
  if (sync_->gpu() != nullptr) captured_step_ = std::make_unique<CapturedStep>(sync_->gpu());
  BumpVersions();
  GS_RETURN_IF_ERROR(BroadcastTensors(UnplannedTensorsOf(*module_), side_channel_, deadline));
  if (options_.copies.has_value()) {
    GS_ASSIGN_OR_RETURN(copies_, WeightCopies::Create(options_.copies->type, options_.copies->names,
                                                      buckets_, &parameters_));
  }
  // Straight to the exchange, unless somebody else has to know of the bucket.
  std::function<void(int bucket)> launch = [exchange = exchange_.get()](int bucket) {
    exchange->Launch(bucket);
  };
  if (captured_step_ != nullptr || gathers_ != nullptr || options_.before_exchange != nullptr) {
    launch = [this](int bucket) { LaunchBucket(bucket); };
  }
  reducer_ = std::make_unique<BucketReducer>(
      plan_, parameters_, std::move(launch), options_.on_gradient,
      TensorDevice(sync_->gpu().get()).is_cuda() ? BucketCopies::kTogether : BucketCopies::kEach,
      [this](int bucket) { return exchange_->MakeRoom(bucket); },
      options_.on_backward == nullptr ? std::function<absl::Status()>()
                                      : [this] { return BeginInBackward(); });
  return absl::OkStatus();
}

absl::Status DdpEngine::BindParameters(Deadline deadline) {
  if (options_.units.empty()) {
    GS_ASSIGN_OR_RETURN(parameters_, FlatParameters::Bind(*module_, plan_, buckets_));
    return sync_->BroadcastParameters(deadline);
  }
  GS_RETURN_IF_ERROR(AgreeOnUnits(options_.units, side_channel_, deadline));
  const auto store = [&](int bucket) { return sync_->StoreParameters(bucket, deadline); };
  GS_ASSIGN_OR_RETURN(parameters_, FlatParameters::Bind(*module_, plan_, buckets_, store));
  GS_ASSIGN_OR_RETURN(std::vector<std::vector<int>> units, UnitBuckets(plan_, options_.units));
  gathers_ = std::make_unique<ParameterGathers>(sync_, static_cast<int>(buckets_.size()),
                                                plan_.slots().parameters, std::move(units));
  return absl::OkStatus();
}

absl::Status DdpEngine::GatherUnit(UnitTurn turn, Deadline deadline) {
  GS_RETURN_IF_ERROR(failed_);
  const Activity::Wait wait(options_.activity);
  absl::Status gathered = gathers_->Need(turn, deadline);
  return gathered.ok() ? gathered : Fail(std::move(gathered));
}

at::Tensor DdpEngine::CopyOf(const std::string& name) const {
  for (const FlatParameter& p : parameters_.parameters()) {
    if (p.name == name && !p.leaf.is_same(p.parameter)) return p.leaf;
  }
  return at::Tensor();
}

absl::Status DdpEngine::VisitParameters(
    const std::function<absl::Status(const std::string& name, const at::Tensor& parameter)>& visit,
    Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return gathers_->Visit(parameters_, visit, deadline);
}

absl::StatusOr<std::string> DdpEngine::GatheredSha256(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return gathers_->Sha256(parameters_, deadline);
}

absl::Status DdpEngine::BeginStep(const StepOptions& step) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  GS_RETURN_IF_ERROR(exchange_->Check(step));
  absl::Status status = sync_->status();
  if (status.ok()) status = parameters_.CheckViews();
  if (status.ok() && options_.broadcast_buffers_each_step) {
    status = BroadcastBuffers(Deadline::In(options_.timeout));
  }
  if (status.ok()) status = reducer_->BeginStep();
  if (!status.ok()) return Fail(std::move(status));
  exchange_->Begin(step);
  in_step_ = true;
  return absl::OkStatus();
}

absl::Status DdpEngine::BeginInBackward() {
  in_step_ = true;  // what is wrong FinishStep() returns
  options_.on_backward();
  return BeginNextStep();
}

absl::Status DdpEngine::BeginNextStep() {
  GS_RETURN_IF_ERROR(failed_);
  GS_RETURN_IF_ERROR(sync_->status());
  GS_RETURN_IF_ERROR(parameters_.CheckViews());
  StepOptions next = next_;
  next.step = step() + 1;
  GS_RETURN_IF_ERROR(exchange_->Check(next));
  exchange_->Begin(next);
  return absl::OkStatus();
}

absl::Status DdpEngine::StepOfZeros(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  absl::Status begun = reducer_->BeginStep();
  if (begun.ok()) begun = BeginNextStep();
  if (!begun.ok()) return Fail(std::move(begun));
  in_step_ = true;
  reducer_->CompleteWithZeros();
  GS_RETURN_IF_ERROR(FinishStep(deadline));
  if (sync_->gpu() == nullptr) return absl::OkStatus();
  absl::Status done = sync_->gpu()->SynchronizeDevice();
  return done.ok() ? done : Fail(std::move(done));
}

absl::Status DdpEngine::Capture(const std::function<absl::Status()>& forward_backward) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  if (captured_step_ == nullptr) {
    return absl::FailedPreconditionError("Capture(): expected buckets on a GPU, found the host's");
  }
  GS_RETURN_IF_ERROR(reducer_->BeginStep());
  capturing_ = true;
  bool queued = false;
  const absl::Status status = captured_step_->Capture(buckets_.size(), [&] {
    queued = true;
    const absl::Status own = forward_backward();
    // What the hooks met says more than that a bucket is missing.
    const absl::Status hooks = reducer_->FinishBackward();
    return own.ok() ? hooks : own;
  });
  if (!queued) reducer_->FinishBackward().IgnoreError();
  capturing_ = false;
  return status;
}

absl::Status DdpEngine::ReplayStep(const StepOptions& step) {
  if (captured_step_ == nullptr || !captured_step_->captured()) {
    return absl::FailedPreconditionError("ReplayStep(): expected a successful Capture() first");
  }
  GS_RETURN_IF_ERROR(BeginStep(step));
  reducer_->SkipBackward();
  absl::Status replayed = captured_step_->Replay([this](int bucket) { LaunchBucket(bucket); });
  if (replayed.ok()) return replayed;
  in_step_ = false;
  reducer_->FinishBackward().IgnoreError();
  return Fail(std::move(replayed));
}

void DdpEngine::LaunchBucket(int bucket) {
  if (capturing_) return captured_step_->Ready(bucket);
  if (gathers_ != nullptr) gathers_->Forget(bucket);
  if (MayLeave(bucket)) exchange_->Launch(bucket);
}

// After an error no later bucket of the step leaves either: buckets leave in order.
bool DdpEngine::MayLeave(int bucket) {
  if (options_.before_exchange == nullptr) return true;
  if (hook_error_.ok()) hook_error_ = options_.before_exchange(bucket);
  return hook_error_.ok();
}

void DdpEngine::BumpVersions() const {
  for (size_t b = 0; b < buckets_.size(); ++b) parameters_.BumpVersions(static_cast<int>(b));
}

absl::Status DdpEngine::FinishStep(Deadline deadline) {
  GS_RETURN_IF_ERROR(failed_);
  if (!in_step_) {
    return absl::FailedPreconditionError(
        "FinishStep(): expected a step under way; call BeginStep() before forward");
  }
  in_step_ = false;
  if (options_.find_unused_parameters) reducer_->CompleteWithZeros();
  exchange_->EndBackward();
  absl::Status status = reducer_->FinishBackward();
  if (status.ok()) status = hook_error_;
  if (status.ok()) status = exchange_->Complete(deadline);
  if (status.ok()) status = copies_.Refresh();
  return status.ok() ? status : Fail(std::move(status));
}

absl::Status DdpEngine::Settle(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  const absl::Status status = sync_->Settle(deadline);
  if (!status.ok()) return Fail(status);
  if (!exchange_->updates_here()) BumpVersions();  // the owners may have written them
  return copies_.Refresh();
}

absl::Status DdpEngine::RefreshCopies() {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return copies_.Refresh();
}

absl::Status DdpEngine::CheckBetweenSteps() const {
  GS_RETURN_IF_ERROR(failed_);
  if (!in_step_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step ", exchange_->step().step, " is under way: call FinishStep() first"));
}

absl::Status DdpEngine::Fail(absl::Status status) {
  failed_ = std::move(status);
  sync_->Abort(failed_);
  return failed_;
}

absl::Status DdpEngine::BroadcastBuffers(Deadline deadline, int source) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return BroadcastTensors(BuffersOf(*module_), side_channel_, deadline, source);
}

absl::Status DdpEngine::BroadcastParameters(Deadline deadline, int source) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  if (source != 0) {
    std::vector<NamedParameter> parameters;
    for (const FlatParameter& p : parameters_.parameters()) {
      parameters.push_back({p.name, p.parameter});
    }
    return BroadcastTensors(parameters, side_channel_, deadline, source);
  }
  GS_RETURN_IF_ERROR(sync_->BroadcastParameters(deadline));
  BumpVersions();
  return absl::OkStatus();
}

absl::StatusOr<OptimizerState> DdpEngine::ExportState(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return exchange_->ExportState(deadline);
}

absl::Status DdpEngine::ImportState(const OptimizerState& state, Deadline deadline,
                                    int64_t skipped_steps) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  GS_RETURN_IF_ERROR(exchange_->ImportState(state, deadline, skipped_steps));
  return copies_.Refresh();
}

}  // namespace gradsync
