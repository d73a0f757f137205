#include "core/sync/group_sync.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/group/group_error.h"
#include "core/group/key_value_store.h"
#include "core/group/sync_handle.h"
#include "core/group/sync_life.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/codec.h"

namespace gradsync {
namespace {

// For a failure to be published and to end what is under way, besides what the engine takes; longer
// than GroupError's own limit.
constexpr absl::Duration kFarewell = absl::Seconds(5);

absl::StatusOr<WorkerGroup> CheckGroup(const WorkerGroup& group, absl::string_view who) {
  if (group.world_size < 1 || group.rank < 0 || group.rank >= group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        who, ": expected a rank in 0..world_size-1, found ", group.rank, " of ", group.world_size));
  }
  if (group.world_size > 1 && group.store == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": expected a store with more than one rank"));
  }
  WorkerGroup complete = group;
  if (complete.store == nullptr) complete.store = NewInMemoryStore();
  return complete;
}

absl::Status CheckResiduals(const Plan& plan, const RankState& state) {
  if (!plan.codec().sparse() && !state.residuals.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("residuals of ", state.residuals.begin()->first,
                                                   ": compression ", CodecName(plan.codec()),
                                                   " keeps none"));
  }
  std::map<std::string, int64_t> sizes;
  for (const TensorSpec& tensor : plan.tensors()) sizes[tensor.name] = tensor.numel();
  for (const auto& [name, values] : state.residuals) {
    const auto size = sizes.find(name);
    if (size == sizes.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("residuals of ", name, ": the plan has no such parameter"));
    }
    if (static_cast<int64_t>(values.size()) != size->second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "residuals of ", name, ": expected ", size->second, " elements, found ", values.size()));
    }
  }
  return absl::OkStatus();
}

// What a rank has done when it calls Shutdown(), as it tells the others, who wait in vain for a rank
// that has done less than they.
struct Departure {
  int rank = 0;       // of the job
  int64_t steps = 0;  // the number of its last one
  int64_t gathers = 0;

  std::string ToText() const { return absl::StrCat(rank, " ", steps, " ", gathers); }

  // False where `text` is none.
  static bool Parse(absl::string_view text, Departure* departure) {
    const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
    return words.size() == 3 && absl::SimpleAtoi(words[0], &departure->rank) &&
           absl::SimpleAtoi(words[1], &departure->steps) &&
           absl::SimpleAtoi(words[2], &departure->gathers);
  }
};

class GroupSync final : public GradientSync, private EngineHost {
 public:
  enum class Company { kGroup, kAlone };

  GroupSync(const WorkerGroup& group, absl::string_view name, const EngineFactory& make_engine,
            Company company)
      : group_(group),
        name_(name),
        side_channel_(group, name),
        life_(group.RankOfJob(group.rank)),
        ended_("the group's failure"),
        engine_(make_engine(*this)) {
    if (company == Company::kAlone) return;
    group_error_ = std::make_unique<GroupError>(
        group_, [this](absl::Status status) { OnFailure(std::move(status)); },
        GroupError::Notice{DepartureKey(), [this](const std::string& text) { OnLeft(text); }});
  }

  ~GroupSync() override;

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  SyncHandle Gather(int bucket) override;
  absl::Status StoreParameters(int bucket, Deadline deadline) override;
  UpdateSite update_site() const override { return engine_->update_site(); }
  SyncIdentity identity() const override { return engine_->identity(); }
  std::shared_ptr<GpuApi> gpu() const override { return engine_->gpu(); }
  absl::Status Settle(Deadline deadline) override;
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::StatusOr<RankState> ExportRankState() override;
  absl::Status ImportRankState(const RankState& state) override;
  absl::Status status() const override;
  void Abort(absl::Status reason) override { Report(life_.ReasonOf(std::move(reason))); }
  absl::Status Shutdown(Deadline deadline) override;
  WireStats wire_stats() const override {
    return life_.bound() ? engine_->wire_stats() : WireStats();
  }
  Staleness staleness() const override {
    return life_.bound() ? engine_->staleness() : Staleness();
  }

 private:
  const WorkerGroup& worker() const override { return group_; }
  const std::string& name() const override { return name_; }
  SideChannel& side_channel() override { return side_channel_; }
  void Report(absl::Status status) override;
  void Publish(absl::Status status) override;

  bool at_owner() const { return update_site() == UpdateSite::kOwner; }
  absl::Status CheckUsable() const;
  absl::Status CheckSlots(const Plan& plan) const;
  absl::Status CheckSharded(int bucket) const;
  absl::Status Failed(absl::Status status);
  absl::Status Collective(absl::Status status);
  SyncHandle FailureHandle(std::string what);
  void OnFailure(absl::Status status);
  std::string DepartureKey() const { return group_.Key(absl::StrCat("left/", name_)); }
  absl::Status TellDeparture(Deadline deadline);
  void OnLeft(const std::string& text);
  bool WaitsInVain();
  void AwaitEnd(absl::Duration patience = absl::ZeroDuration());
  void RecordBuckets();

  const WorkerGroup group_;
  const std::string name_;
  SideChannel side_channel_;
  SyncLife life_;
  Plan plan_;
  LaunchOrder order_{0};
  int64_t steps_done_ = 0;  // the number of the last step launched, or imported
  // Of the step launched last, if it is recorded: launches, and what they wait for.
  std::vector<std::pair<TraceEvent, SyncHandle>> recorded_;

  // What this rank has begun, and what the first rank to leave had. Each is written before the other is
  // read, so that one of two threads sees that this rank has begun more.
  std::atomic<int64_t> begun_steps_{0};
  std::atomic<int64_t> begun_gathers_{0};
  std::atomic<bool> expects_departures_{false};
  std::atomic<const Departure*> first_departure_{nullptr};
  Departure departure_;  // written once, before that points to it

  std::atomic<bool> halted_{false};   // nothing may seem to succeed; OnFailure() is to come
  std::atomic<bool> decided_{false};  // OnFailure() has begun
  std::atomic<bool> left_{false};     // as life_ says, for any thread
  std::atomic<bool> parted_{false};   // Shutdown() is over: nobody's failure is ours any more
  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<SyncPromise> refused_ ABSL_GUARDED_BY(mutex_);  // for a failure to resolve
  const SyncPromise ended_;                                   // resolved when OnFailure() is done

  const std::unique_ptr<SyncEngine> engine_;
  std::unique_ptr<GroupError> group_error_;  // null: alone. Last: its threads use all of the above
};

GroupSync::~GroupSync() {
  // Others learn why before they see connections end.
  if (!life_.left()) {
    Report(absl::CancelledError(
        absl::StrCat("rank ", group_.RankOfJob(group_.rank), " left without Shutdown",
                     steps_done_ > 0 ? absl::StrCat(" after step ", steps_done_) : "")));
    AwaitEnd();
  }
  engine_->Close();
}

absl::Status GroupSync::status() const {
  MutexLock lock(&mutex_);
  return failure_;
}

absl::Status GroupSync::CheckUsable() const {
  if (halted_) GS_RETURN_IF_ERROR(status());  // no failure comes before it
  return life_.CheckUsable();
}

void GroupSync::Report(absl::Status status) {
  if (left_) return;
  engine_->Halt(status);
  Publish(std::move(status));
}

void GroupSync::Publish(absl::Status status) {
  // What came first is known: and this may be called while group_error_ is being made.
  if (left_ || decided_) return;
  halted_ = true;
  if (group_error_ != nullptr) return group_error_->Report(std::move(status));
  OnFailure(std::move(status));
}

// What was published first ends everything here.
void GroupSync::OnFailure(absl::Status status) {
  if (parted_) return;
  halted_ = true;
  if (decided_.exchange(true)) return;
  engine_->Halt(status);
  status = engine_->Stop(std::move(status));
  std::vector<SyncPromise> refused;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    refused.swap(refused_);
  }
  engine_->Fail(status);
  for (const SyncPromise& promise : refused) promise.Resolve(status);
  ended_.Resolve(std::move(status));
}

void GroupSync::AwaitEnd(absl::Duration patience) {
  ended_.handle().Wait(Deadline::In(patience + engine_->StopBound() + kFarewell)).IgnoreError();
}

// Where every step waits for all ranks, one that leaves early makes others wait for their deadlines.
absl::Status GroupSync::TellDeparture(Deadline deadline) {
  if (group_error_ == nullptr || group_.world_size == 1) return absl::OkStatus();
  if (!identity().consistency.bulk()) return absl::OkStatus();
  const Departure own = {group_.RankOfJob(group_.rank), steps_done_, begun_gathers_};
  return group_.store->SetIfAbsent(DepartureKey(), own.ToText(), deadline).status();
}

// What was there before this rank was connected is of another object over the same store.
void GroupSync::OnLeft(const std::string& text) {
  if (!expects_departures_ || !Departure::Parse(text, &departure_)) return;
  first_departure_ = &departure_;
  WaitsInVain();
}

// Whether this rank has begun what a rank that has left never will; reports it then.
bool GroupSync::WaitsInVain() {
  const Departure* const left = first_departure_;
  if (left == nullptr) return false;
  const int64_t steps = begun_steps_, gathers = begun_gathers_;
  if (steps <= left->steps && gathers <= left->gathers) return false;
  Report(absl::FailedPreconditionError(absl::StrCat(
      "rank ", left->rank, " has left ",
      left->steps > 0 ? absl::StrCat("after step ", left->steps) : "before its first step",
      ", rank ", group_.RankOfJob(group_.rank),
      steps > left->steps ? absl::StrCat(" waits in step ", steps) : " waits for parameters",
      ": all ranks must do the same steps before they leave")));
  return true;
}

// A collective call failed here, maybe because the group has; returns what the group failed with.
absl::Status GroupSync::Failed(absl::Status status) {
  Report(status);
  AwaitEnd(PatienceFor(group_, status));
  const absl::Status group = this->status();
  return group.ok() ? Certain(std::move(status)) : group;
}

absl::Status GroupSync::Collective(absl::Status status) {
  return status.ok() ? status : Failed(std::move(status));
}

absl::StatusOr<std::vector<GradBucket>> GroupSync::Bind(const Plan& plan, Deadline deadline) {
  GS_RETURN_IF_ERROR(status());
  GS_RETURN_IF_ERROR(life_.BeginBind());
  if (plan.world_size() != group_.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("the plan is for ", plan.world_size(),
                                                   " ranks, expected one for ", group_.world_size));
  }
  const absl::Status agreed = engine_->Agree(plan, deadline);
  if (absl::IsFailedPrecondition(agreed)) return agreed;
  GS_RETURN_IF_ERROR(Collective(agreed));
  GS_RETURN_IF_ERROR(engine_->CheckPlan(plan));
  GS_RETURN_IF_ERROR(CheckSlots(plan));
  plan_ = plan;
  order_ = LaunchOrder(static_cast<int>(plan.buckets().size()));
  absl::StatusOr<std::vector<GradBucket>> buckets = engine_->Connect(plan, deadline);
  expects_departures_ = true;
  // Nobody launches before everybody is connected.
  const absl::Status connected = buckets.ok() ? side_channel_.Barrier(deadline) : buckets.status();
  GS_RETURN_IF_ERROR(Collective(connected));
  life_.SetBound();
  return buckets;
}

absl::Status GroupSync::CheckSlots(const Plan& plan) const {
  const auto refuse = [this](absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("buckets that share memory: expected ", expected, ", found ", name_));
  };
  if (plan.slots() == BucketSlots()) return absl::OkStatus();
  if (!at_owner()) return refuse("update at the owners");
  if (gpu() != nullptr) return refuse("buckets in the host's memory");
  if (plan.slots().parameters > 0 && !engine_->keeps_parameters()) {
    return refuse("a backend whose owners can keep the parameters");
  }
  return absl::OkStatus();
}

// A handle of the failure that is to come.
SyncHandle GroupSync::FailureHandle(std::string what) {
  SyncPromise promise(std::move(what));
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return ResolvedHandle(failure_);
  refused_.push_back(promise);
  return promise.handle();
}

SyncHandle GroupSync::Launch(const StepOptions& step, int bucket) {
  absl::Status refused = CheckUsable();
  if (!refused.ok()) return ResolvedHandle(std::move(refused));
  refused = order_.Check(step, bucket);
  if (!refused.ok()) Report(refused);
  const auto failure = [&] {
    return FailureHandle(absl::StrCat("bucket ", bucket, " of step ", step.step));
  };
  if (!refused.ok() || halted_) return failure();
  if (bucket == 0) {
    RecordBuckets();  // all of the step before are resolved
    begun_steps_ = step.step;
    if (WaitsInVain()) return failure();
  }
  const bool records = Records(group_.recorder.get(), step.step);
  TraceEvent event;
  if (records) event.begin = MonotonicTime::Now();
  absl::StatusOr<SyncHandle> launched = engine_->Launch(step, bucket);
  if (!launched.ok()) {
    Report(launched.status());
    return failure();
  }
  if (records) {
    event.what = TraceSpan::kBucket;
    event.step = step.step;
    event.bucket = bucket;
    event.bytes = plan_.buckets()[bucket].bytes();
    if (launched->done()) {
      event.end = MonotonicTime::Now();
    } else {
      launched->KeepTime();
    }
    recorded_.emplace_back(event, *launched);
  }
  steps_done_ = step.step;
  return order_.Launched(*std::move(launched));
}

void GroupSync::RecordBuckets() {
  for (auto& [event, handle] : recorded_) {
    if (event.end == MonotonicTime()) event.end = handle.resolved_at();
    group_.recorder->Add(event);
  }
  recorded_.clear();
}

absl::Status GroupSync::CheckSharded(int bucket) const {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (plan_.slots().parameters == 0) {
    return absl::FailedPreconditionError(
        "parameters that owners keep: expected a plan with slots of parameters, found none");
  }
  const int buckets = static_cast<int>(plan_.buckets().size());
  if (bucket >= 0 && bucket < buckets) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("gather: expected a bucket below ", buckets, ", found ", bucket));
}

SyncHandle GroupSync::Gather(int bucket) {
  absl::Status refused = CheckSharded(bucket);
  if (!refused.ok()) return ResolvedHandle(std::move(refused));
  const auto failure = [&] { return FailureHandle(absl::StrCat("gather of bucket ", bucket)); };
  if (halted_) return failure();
  ++begun_gathers_;
  if (WaitsInVain()) return failure();
  absl::StatusOr<SyncHandle> gathered = engine_->Gather(bucket);
  if (gathered.ok()) return *std::move(gathered);
  Report(gathered.status());
  return failure();
}

absl::Status GroupSync::StoreParameters(int bucket, Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckSharded(bucket));
  return Collective(engine_->StoreParameters(bucket, deadline));
}

absl::Status GroupSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (plan_.slots().parameters > 0) {
    return absl::FailedPreconditionError(
        "broadcast: expected parameters in all buckets, found a plan with slots of parameters "
        "(StoreParameters())");
  }
  return Collective(engine_->Broadcast(steps_done_, deadline));
}

absl::Status GroupSync::Settle(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  return Collective(engine_->Settle(deadline));
}

absl::StatusOr<OptimizerState> GroupSync::ExportOptimizerState(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (!at_owner()) return OptimizerState();
  absl::StatusOr<OptimizerState> state = engine_->Export(steps_done_, deadline);
  if (!state.ok()) return Failed(state.status());
  return state;
}

absl::Status GroupSync::ImportOptimizerState(const OptimizerState& state, Deadline deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (life_.bound()) GS_RETURN_IF_ERROR(CheckState(plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  // A job that goes on from a state goes on alike here and in new processes.
  engine_->ForgetResiduals();
  if (!at_owner()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(Collective(engine_->Import(state, deadline)));
  steps_done_ = state.step;
  return absl::OkStatus();
}

absl::StatusOr<RankState> GroupSync::ExportRankState() {
  GS_RETURN_IF_ERROR(CheckUsable());
  return engine_->ExportResiduals();
}

absl::Status GroupSync::ImportRankState(const RankState& state) {
  if (life_.bound()) GS_RETURN_IF_ERROR(CheckResiduals(plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  if (plan_.codec().sparse()) engine_->ImportResiduals(state);
  return absl::OkStatus();
}

absl::Status GroupSync::Shutdown(Deadline deadline) {
  if (life_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckUsable());
  absl::Status quiet =
      engine_->Settle(deadline);  // else others would wait for this rank's next step
  if (quiet.ok()) RecordBuckets();
  if (quiet.ok()) quiet = TellDeparture(deadline);
  if (quiet.ok()) quiet = side_channel_.Barrier(deadline);
  if (quiet.ok()) quiet = engine_->Drain(deadline);
  GS_RETURN_IF_ERROR(Collective(std::move(quiet)));
  GS_RETURN_IF_ERROR(status());
  if (group_error_ != nullptr) group_error_->Leave();
  life_.SetLeft();
  left_ = true;
  // Whoever does not say goodbye is still watched, and named to those who wait for it.
  const absl::Status goodbye = engine_->Leave(deadline);
  parted_ = true;
  const absl::Status failure = status();
  if (goodbye.ok() || !failure.ok() || group_error_ == nullptr) {
    return failure.ok() ? goodbye : failure;
  }
  // Others would take the end of this rank's streams for the failure.
  return PublishFailure(group_, goodbye);
}

}  // namespace

absl::Status LaunchOrder::Check(const StepOptions& step, int bucket) {
  const bool between_steps = !started_ || next_bucket_ == buckets_;
  const int expected_bucket = between_steps ? 0 : next_bucket_;
  if (bucket != expected_bucket) {
    return absl::FailedPreconditionError(absl::StrCat("launch out of order in step ", step.step,
                                                      ": expected bucket ", expected_bucket, " of ",
                                                      buckets_, ", found bucket ", bucket));
  }
  if (between_steps) {
    if (step.step < 1 || (started_ && step.step <= step_.step)) {
      return absl::FailedPreconditionError(
          absl::StrCat("launch of step ", step.step, ": expected a step after ", step_.step));
    }
    GS_RETURN_IF_ERROR(CheckResolved(step));
    handles_.clear();
    step_ = step;
    started_ = true;
  } else if (step != step_) {
    return absl::FailedPreconditionError(
        absl::StrCat("launch of bucket ", bucket, ": expected the options of step ", step_.step,
                     " with lr ", step_.lr, ", found step ", step.step, " with lr ", step.lr));
  }
  next_bucket_ = bucket + 1;
  return absl::OkStatus();
}

absl::Status LaunchOrder::CheckResolved(const StepOptions& next) const {
  for (size_t bucket = 0; bucket < handles_.size(); ++bucket) {
    if (handles_[bucket].done()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("launch of step ", next.step, ": expected all handles of step ", step_.step,
                     " to be resolved, found that of bucket ", bucket, " open"));
  }
  return absl::OkStatus();
}

SyncHandle LaunchOrder::Launched(SyncHandle handle) {
  handles_.push_back(handle);
  return handle;
}

absl::StatusOr<std::unique_ptr<GradientSync>> NewGroupSync(const WorkerGroup& group,
                                                           absl::string_view name,
                                                           const EngineFactory& make_engine) {
  GS_ASSIGN_OR_RETURN(const WorkerGroup complete, CheckGroup(group, name));
  return std::make_unique<GroupSync>(complete, name, make_engine, GroupSync::Company::kGroup);
}

std::unique_ptr<GradientSync> NewSoloSync(absl::string_view name,
                                          const EngineFactory& make_engine) {
  return std::make_unique<GroupSync>(WorkerGroup(), name, make_engine, GroupSync::Company::kAlone);
}

}  // namespace gradsync
