#include "ps_client/ps_gradient_sync.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "optim/state_mapping.h"
#include "plan/consistency.h"
#include "plan/push_lead.h"
#include "plan/server_streams.h"
#include "plan/shard_map.h"
#include "ps_client/exchange.h"
#include "ps_client/ps_terms.h"
#include "ps_client/window_exchange.h"
#include "sync/flat_buckets.h"
#include "sync/group_error.h"
#include "sync/launch_order.h"
#include "sync/side_channel.h"
#include "sync/sync_life.h"
#include "sync/window_buckets.h"

namespace gradsync {
namespace {

// How long leaving may take: publishing why, and the closing of streams.
constexpr absl::Duration kPublishPatience = absl::Seconds(5);
constexpr absl::Duration kClosePatience = absl::Seconds(5);

class PsGradientSync : public GradientSync {
 public:
  explicit PsGradientSync(const PsOptions& options)
      : options_(options),
        side_channel_(options.group, "ps"),
        life_(options.group.rank),
        reports_(std::make_shared<Reports>()),
        group_error_(options.group, [this](absl::Status status) { OnFailure(std::move(status)); }) {
  }

  ~PsGradientSync() override {
    if (!life_.left()) {
      Abort(absl::CancelledError("left without Shutdown()"));
      AwaitFailure();
    }
    if (windows_ != nullptr) windows_->Stop();
    if (exchange_ != nullptr) {
      exchange_->FailAll(absl::CancelledError(absl::StrCat("rank ", options_.group.rank, " left")));
      exchange_->WaitClosed(Deadline::In(kClosePatience));
    }
    MutexLock lock(&reports_->mutex);
    reports_->to = nullptr;
  }

  absl::StatusOr<std::vector<GradBucket>> Bind(const Plan& plan, Deadline deadline) override;
  absl::Status BroadcastParameters(Deadline deadline) override;
  SyncHandle Launch(const StepOptions& step, int bucket) override;
  UpdateSite update_site() const override { return options_.update_site; }
  SyncIdentity identity() const override {
    if (options_.windows) return {Backend::kPsOverShm};
    return {Backend::kPsOverGrpc, options_.consistency, options_.connections};
  }
  absl::Status Settle(Deadline deadline) override;
  absl::StatusOr<OptimizerState> ExportOptimizerState(Deadline deadline) override;
  absl::Status ImportOptimizerState(const OptimizerState& state, Deadline deadline) override;
  absl::Status status() const override { return group_error_.status(); }
  absl::Status Shutdown(Deadline deadline) override;

  void Abort(absl::Status reason) override { Report(life_.ReasonOf(std::move(reason))); }

  WireStats wire_stats() const override {
    if (windows_ != nullptr) return windows_->wire_stats();
    return exchange_ == nullptr ? WireStats() : exchange_->wire_stats();
  }

  Staleness staleness() const override {
    return exchange_ == nullptr ? Staleness() : exchange_->staleness();
  }

 private:
  // Where streams report errors; they may outlive this object for a moment.
  struct Reports {
    Mutex mutex;
    GroupError* to ABSL_GUARDED_BY(mutex) = nullptr;
    absl::Status early ABSL_GUARDED_BY(mutex);  // before ranks have agreed: the first
  };

  bool bulk() const { return options_.consistency.bulk(); }
  bool at_owner() const { return options_.update_site == UpdateSite::kOwner; }
  absl::Status MakeBuckets(const Plan& plan, const ShardMap& shards);
  absl::Status Join(const Plan& plan, Deadline deadline);
  absl::Status ConnectWindows(Deadline deadline);
  absl::Status CheckUsable() const;
  absl::Status Broadcast(Deadline deadline);
  absl::Status Import(const OptimizerState& state, Deadline deadline);
  void HearReports();
  void AwaitFailure();
  void Report(absl::Status status);
  absl::Status Reported(absl::Status status);
  void OnFailure(absl::Status status);

  const PsOptions options_;
  SideChannel side_channel_;
  std::vector<GradBucket> buckets_;
  std::unique_ptr<Plan> plan_;
  std::unique_ptr<LaunchOrder> order_;
  bool broadcast_ = false;
  SyncLife life_;
  std::atomic<bool> reported_{false};  // a failure, whose handles are soon to fail
  const std::shared_ptr<Reports> reports_;
  Mutex mutex_;
  CondVar changed_;
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;
  // Set in Bind() under mutex_, for OnFailure(); the second only with options_.windows.
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<WindowExchange> windows_;
  GroupError group_error_;  // last: its threads use all of the above
};

void PsGradientSync::OnFailure(absl::Status status) {
  std::shared_ptr<Exchange> exchange;
  std::shared_ptr<WindowExchange> windows;
  {
    MutexLock lock(&mutex_);
    exchange = exchange_;
    windows = windows_;
  }
  if (windows != nullptr) windows->Fail(status);
  if (exchange != nullptr) exchange->FailAll(status);
  MutexLock lock(&mutex_);
  failed_ = true;
  changed_.SignalAll();
}

// From here on a stream's error is the group's. One that came before ranks have agreed may be a
// server's refusal of what they will find out themselves.
void PsGradientSync::HearReports() {
  MutexLock lock(&reports_->mutex);
  reports_->to = &group_error_;
  if (!reports_->early.ok()) group_error_.Report(reports_->early);
}

// After a failure nothing that is open here, or launched, may seem to succeed.
void PsGradientSync::Report(absl::Status status) {
  reported_.store(true);
  std::shared_ptr<WindowExchange> windows;
  {
    MutexLock lock(&mutex_);
    windows = windows_;
  }
  if (windows != nullptr) windows->Halt();
  group_error_.Report(std::move(status));
}

// After Report(): until the group has failed here too.
void PsGradientSync::AwaitFailure() {
  MutexLock lock(&mutex_);
  const Deadline deadline = Deadline::In(kPublishPatience);
  while (!failed_ && !changed_.WaitWithDeadline(&mutex_, deadline)) {
  }
}

// The group hears of a failed collective; what failed first is what this rank returns.
absl::Status PsGradientSync::Reported(absl::Status status) {
  if (status.ok()) return status;
  Report(status);
  AwaitFailure();
  const absl::Status first = group_error_.status();
  return first.ok() ? status : first;
}

absl::Status PsGradientSync::CheckUsable() const {
  GS_RETURN_IF_ERROR(status());
  return life_.CheckUsable();
}

absl::StatusOr<std::vector<GradBucket>> PsGradientSync::Bind(const Plan& plan, Deadline deadline) {
  GS_RETURN_IF_ERROR(status());
  GS_RETURN_IF_ERROR(life_.BeginBind());
  if (plan.world_size() != options_.group.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("plan: expected one for ",
                                                   options_.group.world_size,
                                                   " workers, found one for ", plan.world_size()));
  }
  GS_ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(plan, options_.weights));
  if (const absl::Status made = MakeBuckets(plan, shards); !made.ok()) {
    Report(made);
    return made;
  }
  const std::vector<BucketMemory> memory = MemoryOf(buckets_);
  std::vector<ExchangedBucket> exchanged;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    exchanged.push_back(
        {memory[b].grad, memory[b].param, std::make_shared<const GradBucket>(buckets_[b])});
  }
  Exchange::Options options;
  options.rank = options_.group.rank;
  options.update_site = options_.update_site;
  options.consistency = options_.consistency;
  options.connections = options_.windows
                            ? std::vector<int>(options_.servers.size(), options_.connections)
                            : StreamsByServer(options_.weights, options_.connections);
  options.leads = PushLeads(plan, shards, options.connections, options_.lead);
  options.servers = options_.servers;
  auto exchange = std::make_shared<Exchange>(options, plan, shards, std::move(exchanged),
                                             [reports = reports_](absl::Status status) {
                                               MutexLock lock(&reports->mutex);
                                               if (reports->to != nullptr) {
                                                 reports->to->Report(std::move(status));
                                               } else {
                                                 reports->early.Update(std::move(status));
                                               }
                                             });
  {
    MutexLock lock(&mutex_);
    exchange_ = std::move(exchange);
  }
  if (const absl::Status failed = status(); !failed.ok()) OnFailure(failed);
  if (absl::Status joined = Join(plan, deadline); !joined.ok()) {
    // The group's failure may be this rank's own.
    if (absl::IsAborted(joined)) return Reported(std::move(joined));
    Report(joined);
    return joined;
  }
  order_ = std::make_unique<LaunchOrder>(static_cast<int>(plan.buckets().size()));
  plan_ = std::make_unique<Plan>(plan);
  life_.SetBound();
  return buckets_;
}

absl::Status PsGradientSync::MakeBuckets(const Plan& plan, const ShardMap& shards) {
  if (!options_.windows) {
    GS_ASSIGN_OR_RETURN(buckets_, AllocateBuckets(plan));
    return absl::OkStatus();
  }
  WindowExchangeOptions options;
  options.group = options_.group;
  options.servers = options_.servers;
  options.report = [this](absl::Status status) { Report(std::move(status)); };
  GS_ASSIGN_OR_RETURN(std::shared_ptr<WindowExchange> windows,
                      WindowExchange::Create(plan, shards, std::move(options)));
  buckets_ = WindowBuckets(windows->group(), options_.group.rank, windows->window());
  MutexLock lock(&mutex_);
  windows_ = std::move(windows);
  return absl::OkStatus();
}

// Every rank comes to the comparison of plans, also one that cannot connect or is refused by a
// server, so that each can say what differs.
absl::Status PsGradientSync::Join(const Plan& plan, Deadline deadline) {
  const absl::StatusOr<proto::Hello> hello = MakeHello(options_, plan);
  const absl::Status connected =
      hello.ok() ? exchange_->Connect(*options_.link, *hello, deadline) : hello.status();
  const absl::Status agreed = AgreeOnTerms(options_, plan, side_channel_, deadline);
  if (absl::IsFailedPrecondition(agreed)) {
    // A server may not have heard both hellos yet, and of a stream that only ended it could say no
    // more than that a worker was lost.
    exchange_->LeaveWith(agreed);
    exchange_->WaitClosed(std::min(deadline, Deadline::In(kClosePatience)));
    return agreed;
  }
  HearReports();
  GS_RETURN_IF_ERROR(connected);
  GS_RETURN_IF_ERROR(agreed);
  GS_RETURN_IF_ERROR(CheckCodec(options_, plan));
  const absl::Status welcomed = exchange_->Welcomed().Wait(deadline);
  if (absl::IsDeadlineExceeded(welcomed) && status().ok()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no answer to hello (servers wait for all workers) from ", exchange_->UnansweredServers()));
  }
  GS_RETURN_IF_ERROR(welcomed);
  if (windows_ != nullptr) GS_RETURN_IF_ERROR(ConnectWindows(deadline));
  // From here on a failure shows in the first step, on every rank alike.
  return side_channel_.Barrier(deadline);
}

absl::Status PsGradientSync::ConnectWindows(Deadline deadline) {
  GS_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                      side_channel_.AllGather(windows_->address(), deadline));
  for (std::string& server : exchange_->ServerWindows()) addresses.push_back(std::move(server));
  if (options_.group.rank == 0) exchange_->SendWindows(addresses);
  return windows_->Connect(addresses, deadline);
}

absl::Status PsGradientSync::Settle(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  return bulk() ? absl::OkStatus() : Reported(exchange_->Settle().Wait(deadline));
}

absl::Status PsGradientSync::BroadcastParameters(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  if (std::exchange(broadcast_, true)) GS_RETURN_IF_ERROR(Settle(deadline));
  return Reported(Broadcast(deadline));
}

absl::Status PsGradientSync::Broadcast(Deadline deadline) {
  // The first barrier: rank 0's values must not arrive where the caller still writes its own. The
  // others expect them from before it.
  if (windows_ != nullptr) {
    GS_RETURN_IF_ERROR(side_channel_.Barrier(deadline));
    windows_->PullParameters();
  } else if (options_.group.rank == 0) {
    GS_RETURN_IF_ERROR(side_channel_.Barrier(deadline));
    GS_RETURN_IF_ERROR(exchange_->TransferParameters().Wait(deadline));
  } else {
    const SyncHandle received = exchange_->TransferParameters();
    GS_RETURN_IF_ERROR(side_channel_.Barrier(deadline));
    GS_RETURN_IF_ERROR(received.Wait(deadline));
  }
  return side_channel_.Barrier(deadline);
}

SyncHandle PsGradientSync::Launch(const StepOptions& step, int bucket) {
  absl::Status usable = CheckUsable();
  if (!usable.ok()) return ResolvedHandle(std::move(usable));
  absl::Status in_order = order_->Check(step, bucket);
  if (in_order.ok() && !bulk() && step.max_norm != 0) {
    in_order = absl::InvalidArgumentError(absl::StrCat(
        "step ", step.step, ": max_norm: expected 0 under ", ConsistencyName(options_.consistency),
        ", where no step has a global norm, found ", step.max_norm));
  }
  if (in_order.ok() && reported_.load()) {
    return exchange_->FailureHandle("the group's failure");
  }
  if (in_order.ok()) {
    return order_->Launched(windows_ != nullptr ? windows_->Launch(step, bucket)
                                                : exchange_->Launch(step, bucket));
  }
  Report(std::move(in_order));
  return exchange_->FailureHandle("a launch out of order");
}

absl::StatusOr<OptimizerState> PsGradientSync::ExportOptimizerState(Deadline deadline) {
  GS_RETURN_IF_ERROR(CheckUsable());
  OptimizerState state;
  if (!at_owner()) return state;
  GS_RETURN_IF_ERROR(Settle(deadline));
  const absl::Status exported = exchange_->ExportState(&state).Wait(deadline);
  exchange_->ForgetExport();
  GS_RETURN_IF_ERROR(Reported(exported));
  // Nobody imports before all have exported.
  GS_RETURN_IF_ERROR(Reported(side_channel_.Barrier(deadline)));
  return state;
}

absl::Status PsGradientSync::ImportOptimizerState(const OptimizerState& state, Deadline deadline) {
  // A state that does not fit is the caller's mistake on every rank, whatever has become of the
  // group.
  if (life_.bound()) GS_RETURN_IF_ERROR(CheckState(*plan_, state));
  GS_RETURN_IF_ERROR(CheckUsable());
  // A job that goes on from a state goes on alike here and in new processes.
  exchange_->ForgetResiduals();
  if (!at_owner()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(Settle(deadline));
  return Reported(Import(state, deadline));
}

absl::Status PsGradientSync::Import(const OptimizerState& state, Deadline deadline) {
  if (options_.group.rank == 0) {
    GS_RETURN_IF_ERROR(exchange_->ImportState(state).Wait(deadline));
  }
  return side_channel_.Barrier(deadline);
}

absl::Status PsGradientSync::Shutdown(Deadline deadline) {
  if (life_.left()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckUsable());
  GS_RETURN_IF_ERROR(Settle(deadline));  // else others would wait for this rank's next step
  GS_RETURN_IF_ERROR(Reported(side_channel_.Barrier(deadline)));
  if (absl::Status failed = status(); !failed.ok()) return failed;
  group_error_.Leave();
  life_.SetLeft();
  // Nobody leaves before all stopped watching for errors.
  GS_RETURN_IF_ERROR(side_channel_.Barrier(deadline));
  if (windows_ != nullptr) windows_->Leave();
  return exchange_->Leave().Wait(deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreatePsGradientSync(const PsOptions& options) {
  GS_ASSIGN_OR_RETURN(const PsOptions complete, CheckPsOptions(options));
  return std::make_unique<PsGradientSync>(complete);
}

}  // namespace gradsync
