#include "gradsync/ddp/distributed_data_parallel.h"

#include <cmath>
#include <numeric>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/monotonic_time.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_api.h"
#include "core/sync/buckets.h"
#include "gradsync/ddp/chunk_bytes_by_hosts.h"
#include "gradsync/ddp/device_worker_optimizer.h"
#include "gradsync/ddp/module_state.h"
#include "gradsync/ddp/ready_order.h"
#include "gradsync/ddp/tensor_over.h"
#include "torch/nn/module.h"

namespace gradsync {
namespace {

// The reverse of registration: the last layers' gradients come first.
std::vector<int> ReverseOrder(size_t count) {
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

int RankOf(const SideChannel* side_channel) {
  return side_channel == nullptr ? 0 : side_channel->rank();
}

absl::Status CheckOptions(const DdpOptions& options, const GradientSync* sync) {
  if (sync == nullptr) return absl::InvalidArgumentError("sync: expected an object, found null");
  if (options.skip_nonfinite_steps && sync->update_site() != UpdateSite::kWorker) {
    return absl::InvalidArgumentError(
        "skip_nonfinite_steps: expected update at the workers, found update at the owners, who "
        "cannot skip a step");
  }
  if (options.copies.has_value() && !options.units.empty()) {
    return absl::InvalidArgumentError(
        "copies: expected parameters that stay, found units of them that come and go");
  }
  const BucketSlots& slots = options.plan.slots;
  if ((slots.gradients > 0 || !options.units.empty()) &&
      sync->update_site() != UpdateSite::kOwner) {
    return absl::InvalidArgumentError(
        "plan.slots: expected update at the owners where buckets share memory, found update at the "
        "workers, who need all gradients");
  }
  return absl::OkStatus();
}

absl::Status CheckOnDevice(const std::vector<NamedParameter>& tensors, c10::Device device) {
  for (const NamedParameter& t : tensors) {
    if (t.tensor.device() == device && t.tensor.layout() == at::kStrided) continue;
    return absl::InvalidArgumentError(absl::StrCat(t.name, ": expected a strided tensor on ",
                                                   device.str(), ", found ",
                                                   t.tensor.device().str()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const torch::nn::Module& module, const std::vector<int>& order,
                              const DdpOptions& options, c10::Device device) {
  GS_ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, TensorSpecsOf(module, device));
  if (options.group_of != nullptr) {
    for (TensorSpec& spec : specs) spec.group = options.group_of(spec);
  }
  return Plan::Create(std::move(specs), order, options.optimizer, options.plan);
}

// Where the module's tensors are to be.
c10::Device DeviceFor(const torch::nn::Module& module, const DdpOptions& options,
                      const GradientSync& sync) {
  const std::vector<NamedParameter> parameters = TrainableParametersOf(module);
  if (!options.units.empty() && !parameters.empty()) return parameters[0].tensor.device();
  return TensorDevice(sync.gpu().get());
}

// Buffers and frozen parameters: what rank 0 broadcasts besides the plan's parameters.
std::vector<NamedParameter> UnplannedTensorsOf(const torch::nn::Module& module) {
  std::vector<NamedParameter> tensors = BuffersOf(module);
  for (NamedParameter& t : FrozenParametersOf(module)) tensors.push_back(std::move(t));
  return tensors;
}

// What a rank finds wrong on its own, before any peer is asked. Rank 0's result is the order of
// gradients.
absl::StatusOr<std::vector<int>> Inspect(const torch::nn::Module& module, const DdpOptions& options,
                                         int rank, c10::Device device) {
  const std::vector<int> reverse = ReverseOrder(TrainableParametersOf(module).size());
  if (reverse.empty()) {
    return absl::InvalidArgumentError("module: expected trainable parameters, found none");
  }
  GS_RETURN_IF_ERROR(MakePlan(module, reverse, options, device).status());
  GS_RETURN_IF_ERROR(CheckOnDevice(UnplannedTensorsOf(module), device));
  if (rank != 0 || options.forward_backward == nullptr) return reverse;
  return ObserveReadyOrder(module, options.forward_backward);
}

// What each rank tells the others: "order 2,1,0" and its unplanned tensors, a line each; or its
// error.
constexpr char kOrder[] = "order ";

std::string EncodeAnswer(const absl::StatusOr<std::vector<int>>& order,
                         const torch::nn::Module& module) {
  if (!order.ok()) return order.status().ToString();
  return absl::StrCat(kOrder, absl::StrJoin(*order, ","), "\n",
                      DescribeTensors(UnplannedTensorsOf(module)));
}

absl::StatusOr<std::vector<int>> DecodeOrder(absl::string_view answer) {
  const absl::string_view line = answer.substr(0, answer.find('\n'));
  std::vector<int> order;
  for (absl::string_view number : absl::StrSplit(absl::StripPrefix(line, kOrder), ',')) {
    if (!absl::SimpleAtoi(number, &order.emplace_back())) {
      return absl::DataLossError(
          absl::StrCat("order of parameters from rank 0: expected numbers, found ", line));
    }
  }
  return order;
}

absl::string_view DescriptionIn(absl::string_view answer) {
  const size_t end = answer.find('\n');
  return end == absl::string_view::npos ? absl::string_view() : answer.substr(end + 1);
}

// Collective: rank 0's order for all, or an error for all, so that no rank waits for one that gave
// up.
absl::StatusOr<std::vector<int>> AgreeOnOrder(const absl::StatusOr<std::vector<int>>& own,
                                              const torch::nn::Module& module,
                                              SideChannel* side_channel, Deadline deadline) {
  if (side_channel == nullptr) return own;
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                      side_channel->AllGather(EncodeAnswer(own, module), deadline));
  GS_RETURN_IF_ERROR(own.status());
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (!absl::StartsWith(answers[rank], kOrder)) {
      return absl::AbortedError(absl::StrCat(side_channel->Name(rank),
                                             " refused its module or options: ", answers[rank]));
    }
    if (DescriptionIn(answers[rank]) != DescriptionIn(answers[0])) {
      return absl::FailedPreconditionError(
          absl::StrCat("buffers and frozen parameters differ between ", side_channel->Name(0),
                       " and ", side_channel->Name(rank), ": ",
                       FirstDifference(std::string(DescriptionIn(answers[0])),
                                       std::string(DescriptionIn(answers[rank])))));
    }
  }
  return DecodeOrder(answers[0]);
}

// As few as the units need.
absl::Status MakeParameterSlots(const std::vector<std::vector<std::string>>& units, Plan* plan) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::vector<int>> buckets, UnitBuckets(*plan, units));
  BucketSlots slots = plan->slots();
  slots.parameters = ParameterSlotsFor(buckets);
  GS_ASSIGN_OR_RETURN(*plan, plan->WithSlots(slots));
  return absl::OkStatus();
}

// Makes `plan` that of the part, and lets go of what is not in it.
absl::Status TakePart(const DdpPart& part, const torch::nn::Module& module, Plan* plan) {
  std::vector<int> members;
  std::vector<at::Tensor> others;
  const std::vector<NamedParameter> parameters = TrainableParametersOf(module);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool mine = members.size() < part.parameters.size() &&
                      parameters[i].name == part.parameters[members.size()];
    if (mine) {
      members.push_back(static_cast<int>(i));
    } else {
      others.push_back(parameters[i].tensor);
    }
  }
  if (members.size() < part.parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("part: expected trainable parameters in the module's order, found ",
                     part.parameters[members.size()]));
  }
  GS_ASSIGN_OR_RETURN(*plan, plan->Part(members));
  for (const at::Tensor& other : others) {
    other.requires_grad_(false);
    other.set_data(at::empty({0}, other.options()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DistributedDataParallel>> DistributedDataParallel::Create(
    std::shared_ptr<torch::nn::Module> module, GradientSync* sync, SideChannel* side_channel,
    DdpOptions options) {
  options.plan.world_size = side_channel == nullptr ? 1 : side_channel->world_size();
  GS_RETURN_IF_ERROR(CheckOptions(options, sync));
  if (module == nullptr) return absl::InvalidArgumentError("module: expected one, found null");
  // Only for waits on peers: observing the order is this rank's own work and may be slow.
  const c10::Device device = DeviceFor(*module, options, *sync);
  SideChannel* const of_module = options.part.has_value() ? options.part->all_ranks : side_channel;
  const absl::StatusOr<std::vector<int>> own_order =
      Inspect(*module, options, RankOf(of_module), device);
  const Deadline deadline = Deadline::In(options.timeout);
  if (options.plan.chunk_bytes == 0 && options.earlier_chunk_bytes.has_value()) {
    options.plan.chunk_bytes = *options.earlier_chunk_bytes;
  } else if (options.plan.chunk_bytes == 0 && of_module != nullptr) {
    GS_ASSIGN_OR_RETURN(options.plan.chunk_bytes, ChunkBytesByHosts(*of_module, deadline));
  }
  GS_ASSIGN_OR_RETURN(const std::vector<int> order,
                      AgreeOnOrder(own_order, *module, of_module, deadline));
  GS_ASSIGN_OR_RETURN(Plan plan, MakePlan(*module, order, options, device));
  if (options.part.has_value()) GS_RETURN_IF_ERROR(TakePart(*options.part, *module, &plan));
  if (!options.units.empty()) GS_RETURN_IF_ERROR(MakeParameterSlots(options.units, &plan));
  std::unique_ptr<DistributedDataParallel> ddp(new DistributedDataParallel(
      std::move(module), sync, side_channel, std::move(options), std::move(plan)));
  GS_RETURN_IF_ERROR(ddp->Bind(deadline));
  return ddp;
}

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 GradientSync* sync, SideChannel* side_channel,
                                                 DdpOptions options, Plan plan)
    : module_(std::move(module)),
      sync_(sync),
      side_channel_(side_channel),
      options_(std::move(options)),
      plan_(std::move(plan)) {}

DistributedDataParallel::~DistributedDataParallel() {
  if (in_step_)
    sync_->Abort(absl::CancelledError("the wrapper was destroyed in the middle of a step"));
}

absl::Status DistributedDataParallel::Bind(Deadline deadline) {
  GS_ASSIGN_OR_RETURN(buckets_, sync_->Bind(plan_, deadline));
  GS_RETURN_IF_ERROR(BindParameters(deadline));
  GS_RETURN_IF_ERROR(MakeOptimizer());
  for (size_t b = 0; b < buckets_.size(); ++b) parameters_.BumpVersions(static_cast<int>(b));
  GS_RETURN_IF_ERROR(BroadcastFromRank0(UnplannedTensorsOf(*module_), deadline));
  if (options_.copies.has_value()) {
    GS_ASSIGN_OR_RETURN(copies_, WeightCopies::Create(options_.copies->type, options_.copies->names,
                                                      buckets_, &parameters_));
  }
  reducer_ = std::make_unique<BucketReducer>(
      plan_, parameters_, [this](int bucket) { LaunchBucket(bucket); }, options_.on_gradient,
      TensorDevice(sync_->gpu().get()).is_cuda() ? BucketCopies::kTogether : BucketCopies::kEach,
      [this](int bucket) { return MakeRoom(bucket); });
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::BindParameters(Deadline deadline) {
  if (options_.units.empty()) {
    GS_ASSIGN_OR_RETURN(parameters_, FlatParameters::Bind(*module_, plan_, buckets_));
    return sync_->BroadcastParameters(deadline);
  }
  GS_RETURN_IF_ERROR(AgreeOnUnits(deadline));
  const auto store = [&](int bucket) { return sync_->StoreParameters(bucket, deadline); };
  GS_ASSIGN_OR_RETURN(parameters_, FlatParameters::Bind(*module_, plan_, buckets_, store));
  GS_ASSIGN_OR_RETURN(std::vector<std::vector<int>> units, UnitBuckets(plan_, options_.units));
  gathers_ = std::make_unique<ParameterGathers>(sync_, static_cast<int>(buckets_.size()),
                                                plan_.slots().parameters, std::move(units));
  return absl::OkStatus();
}

// Ranks that gather in other orders would wait for each other.
absl::Status DistributedDataParallel::AgreeOnUnits(Deadline deadline) {
  if (side_channel_ == nullptr) return absl::OkStatus();
  std::string mine;
  for (const std::vector<std::string>& unit : options_.units) {
    absl::StrAppend(&mine, absl::StrJoin(unit, " "), "\n");
  }
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, side_channel_->AllGather(mine, deadline));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the order of gathers differs between ", side_channel_->Name(0), " and ",
                     side_channel_->Name(rank), ": ", FirstDifference(all[0], all[rank])));
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::GatherUnit(UnitTurn turn, Deadline deadline) {
  GS_RETURN_IF_ERROR(failed_);
  const Activity::Wait wait(options_.activity);
  absl::Status gathered = gathers_->Need(turn, deadline);
  return gathered.ok() ? gathered : Fail(std::move(gathered));
}

at::Tensor DistributedDataParallel::CopyOf(const std::string& name) const {
  for (const FlatParameter& p : parameters_.parameters()) {
    if (p.name == name && !p.leaf.is_same(p.parameter)) return p.leaf;
  }
  return at::Tensor();
}

absl::Status DistributedDataParallel::VisitParameters(
    const std::function<absl::Status(const std::string& name, const at::Tensor& parameter)>& visit,
    Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  for (const FlatParameter& p : parameters_.parameters()) {
    GS_RETURN_IF_ERROR(gathers_->NeedBucket(p.bucket, deadline));
    GS_RETURN_IF_ERROR(visit(p.name, p.parameter));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> DistributedDataParallel::GatheredSha256(Deadline deadline) {
  Sha256 hash;
  const auto add = [&hash](const std::string&, const at::Tensor& parameter) {
    const at::Tensor row_major = parameter.detach().contiguous().cpu();
    hash.Update(row_major.data_ptr(), row_major.nbytes());
    return absl::OkStatus();
  };
  GS_RETURN_IF_ERROR(VisitParameters(add, deadline));
  return hash.HexDigest();
}

absl::Status DistributedDataParallel::MakeOptimizer() {
  const std::shared_ptr<GpuApi> gpu = sync_->gpu();
  const bool at_worker = sync_->update_site() == UpdateSite::kWorker;
  if (gpu == nullptr) {
    if (at_worker) optimizer_ = CreateWorkerOptimizer(plan_, MemoryOf(buckets_));
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(stream_timer_, StreamTimer::Create(gpu, buckets_.size()));
  captured_step_ = std::make_unique<CapturedStep>(gpu);
  if (!at_worker) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(optimizer_, CreateDeviceWorkerOptimizer(plan_, MemoryOf(buckets_), gpu));
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::BroadcastFromRank0(const std::vector<NamedParameter>& tensors,
                                                         Deadline deadline) {
  if (options_.plan.world_size == 1) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(
      const std::string packed,
      side_channel_->Broadcast(RankOf(side_channel_) == 0 ? PackTensors(tensors) : std::string(),
                               deadline));
  if (RankOf(side_channel_) == 0) return absl::OkStatus();
  return UnpackTensors(packed, tensors);
}

absl::Status DistributedDataParallel::CheckStepOptions(const StepOptions& step) const {
  if (step.step <= step_.step) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: expected a number above ", step_.step, ", found ", step.step));
  }
  if (!std::isfinite(step.lr) || !(step.max_norm >= 0) || !std::isfinite(step.inverse_loss_scale)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", step.step,
        ": expected finite lr and inverse_loss_scale and max_norm of at least 0, found ", step.lr,
        ", ", step.inverse_loss_scale, ", ", step.max_norm));
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::CheckClipping(const StepOptions& step) const {
  if (plan_.slots().gradients == 0 || step.max_norm == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "step ", step.step, ": max_norm: expected 0 where buckets share their gradients' memory, ",
      "because a norm needs all gradients at once, found ", step.max_norm));
}

absl::Status DistributedDataParallel::BeginStep(const StepOptions& step) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  GS_RETURN_IF_ERROR(CheckStepOptions(step));
  GS_RETURN_IF_ERROR(CheckClipping(step));
  absl::Status status = sync_->status();
  if (status.ok()) status = parameters_.CheckViews();
  if (status.ok() && options_.broadcast_buffers_each_step) {
    status = BroadcastBuffers(Deadline::In(options_.timeout));
  }
  if (status.ok()) status = reducer_->BeginStep();
  if (!status.ok()) return Fail(std::move(status));
  step_ = step;
  in_step_ = true;
  room_wait_ = absl::ZeroDuration();
  handles_.clear();
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::Capture(
    const std::function<absl::Status()>& forward_backward) {
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

absl::Status DistributedDataParallel::ReplayStep(const StepOptions& step) {
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

StallNotice DistributedDataParallel::StallOf(int bucket) const {
  StallNotice stall;
  if (options_.on_stall == nullptr) return stall;
  stall.after = options_.stall_after;
  stall.say = [this, bucket](absl::Duration waited) {
    options_.on_stall(step_.step, bucket, waited);
  };
  return stall;
}

// In backward. Of the bucket that had the memory before nothing is needed once it has resolved.
absl::Status DistributedDataParallel::MakeRoom(int bucket) {
  const Activity::Wait wait(options_.activity);
  const int before = bucket - plan_.slots().gradients;
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kExposed, step_.step, before);
  const MonotonicTime start = MonotonicTime::Now();
  GS_RETURN_IF_ERROR(handles_[before].Wait(Deadline::In(options_.timeout), StallOf(before)));
  room_wait_ += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

void DistributedDataParallel::LaunchBucket(int bucket) {
  if (capturing_) return captured_step_->Ready(bucket);
  // From here on the owner may write the parameters, while backward goes on.
  if (optimizer_ == nullptr) parameters_.BumpVersions(bucket);
  if (gathers_ != nullptr) gathers_->Forget(bucket);
  { const RecordedSpan ready(options_.recorder.get(), TraceSpan::kReady, step_.step, bucket); }
  handles_.push_back(sync_->Launch(step_, bucket));
}

absl::Status DistributedDataParallel::FinishStep(Deadline deadline) {
  GS_RETURN_IF_ERROR(failed_);
  if (!in_step_) {
    return absl::FailedPreconditionError(
        "FinishStep(): expected a step under way; call BeginStep() before forward");
  }
  in_step_ = false;
  timing_ = StepTiming();
  timing_.exposed = timing_.in_backward = room_wait_;
  absl::Status status = reducer_->FinishBackward();
  if (status.ok()) status = CompleteStep(deadline);
  if (status.ok()) status = copies_.Refresh();
  return status.ok() ? status : Fail(std::move(status));
}

absl::Status DistributedDataParallel::Settle(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  const absl::Status status = sync_->Settle(deadline);
  if (!status.ok()) return Fail(status);
  // The owners may have written them.
  for (size_t b = 0; optimizer_ == nullptr && b < buckets_.size(); ++b) {
    parameters_.BumpVersions(static_cast<int>(b));
  }
  return copies_.Refresh();
}

absl::Status DistributedDataParallel::RefreshCopies() {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return copies_.Refresh();
}

absl::Status DistributedDataParallel::CompleteStep(Deadline deadline) {
  // The norm needs all means first; without it, a bucket's update runs while later buckets are
  // still on their way.
  const bool needs_norm =
      optimizer_ != nullptr && (step_.max_norm > 0 || options_.skip_nonfinite_steps);
  if (stream_timer_ != nullptr) GS_RETURN_IF_ERROR(stream_timer_->BeginStep(step_.step));
  for (size_t b = 0; b < handles_.size(); ++b) {
    GS_RETURN_IF_ERROR(WaitForBucket(static_cast<int>(b), deadline));
    if (optimizer_ != nullptr && !needs_norm) GS_RETURN_IF_ERROR(UpdateBucket(static_cast<int>(b)));
  }
  if (stream_timer_ != nullptr) {
    GS_ASSIGN_OR_RETURN(const StreamTimer::StandStill newest, stream_timer_->Newest());
    timing_.exposed = newest.time;
    timing_.exposed_step = newest.step;
  } else {
    timing_.exposed_step = step_.step;
  }
  return needs_norm ? UpdateByNorm() : absl::OkStatus();
}

absl::StatusOr<absl::optional<absl::Duration>> DistributedDataParallel::Exposed(
    int64_t step) const {
  if (stream_timer_ != nullptr) return stream_timer_->Of(step);
  if (step != timing_.exposed_step) return absl::optional<absl::Duration>();
  return absl::make_optional(timing_.exposed);
}

// Of all means: what a step that clips, or may be skipped, needs before its updates.
absl::Status DistributedDataParallel::ApplyNorm() {
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kUpdate, step_.step);
  const MonotonicTime start = MonotonicTime::Now();
  if (options_.skip_nonfinite_steps) {
    GS_ASSIGN_OR_RETURN(const double norm, optimizer_->GradientNorm());
    skipped_ = !std::isfinite(norm);
    skipped_steps_ += skipped_;
  }
  if (skipped_) return absl::OkStatus();
  if (step_.max_norm > 0) GS_RETURN_IF_ERROR(optimizer_->ClipGradients(step_.max_norm));
  timing_.update += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::UpdateByNorm() {
  GS_RETURN_IF_ERROR(ApplyNorm());
  for (size_t b = 0; !skipped_ && b < handles_.size(); ++b) {
    GS_RETURN_IF_ERROR(UpdateBucket(static_cast<int>(b)));
  }
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::WaitForBucket(int bucket, Deadline deadline) {
  if (stream_timer_ != nullptr) GS_RETURN_IF_ERROR(stream_timer_->BeforeWait());
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kExposed, step_.step, bucket);
  const MonotonicTime start = MonotonicTime::Now();
  GS_RETURN_IF_ERROR(handles_[bucket].Wait(deadline, StallOf(bucket)));
  timing_.exposed += MonotonicTime::Now() - start;
  return stream_timer_ != nullptr ? stream_timer_->AfterWait() : absl::OkStatus();
}

absl::Status DistributedDataParallel::UpdateBucket(int bucket) {
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kUpdate, step_.step, bucket);
  const MonotonicTime start = MonotonicTime::Now();
  StepOptions step = step_;
  step.step -= skipped_steps_;
  GS_RETURN_IF_ERROR(optimizer_->Update(step, bucket));
  parameters_.BumpVersions(bucket);
  timing_.update += MonotonicTime::Now() - start;
  return absl::OkStatus();
}

absl::Status DistributedDataParallel::CheckBetweenSteps() const {
  GS_RETURN_IF_ERROR(failed_);
  if (!in_step_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("step ", step_.step, " is under way: call FinishStep() first"));
}

absl::Status DistributedDataParallel::Fail(absl::Status status) {
  failed_ = std::move(status);
  sync_->Abort(failed_);
  return failed_;
}

absl::Status DistributedDataParallel::BroadcastBuffers(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  return BroadcastFromRank0(BuffersOf(*module_), deadline);
}

absl::StatusOr<OptimizerState> DistributedDataParallel::ExportState(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  if (optimizer_ != nullptr) return optimizer_->Export(step_.step - skipped_steps_);
  return sync_->ExportOptimizerState(deadline);
}

absl::Status DistributedDataParallel::ImportState(const OptimizerState& state, Deadline deadline,
                                                  int64_t skipped_steps) {
  GS_RETURN_IF_ERROR(CheckBetweenSteps());
  GS_RETURN_IF_ERROR(optimizer_ != nullptr ? optimizer_->Import(state)
                                           : sync_->ImportOptimizerState(state, deadline));
  step_.step = state.step + skipped_steps;
  skipped_steps_ = skipped_steps;
  return copies_.Refresh();
}

}  // namespace gradsync
