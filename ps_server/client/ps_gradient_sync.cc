#include "ps_server/client/ps_gradient_sync.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/group/heartbeat.h"
#include "core/plan/kinds.h"
#include "core/plan/shard_map.h"
#include "core/sync/buckets.h"
#include "core/sync/gradient_sync.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"
#include "ps_server/client/ps_engine.h"
#include "ps_server/client/ps_options.h"
#include "ps_server/client/ps_windows.h"

namespace gradsync {
namespace {

// How long the closing of streams may take.
constexpr absl::Duration kClosePatience = absl::Seconds(5);
// How long servers have to hear why this worker leaves.
constexpr absl::Duration kHearing = absl::Milliseconds(250);

// Where streams report errors; they may outlive the engine for a moment.
struct Reports {
  Mutex mutex;
  EngineHost* to ABSL_GUARDED_BY(mutex) = nullptr;
  absl::Status early ABSL_GUARDED_BY(mutex);  // before ranks have agreed: the first
};

class PsSync : public SyncEngine {
 public:
  PsSync(EngineHost& host, PsOptions options) : SyncEngine(host), options_(std::move(options)) {}

  SyncIdentity identity() const override {
    if (options_.windows) return {Backend::kPsOverShm};
    return {options_.backend, options_.consistency, options_.connections};
  }
  UpdateSite update_site() const override { return options_.update_site; }
  std::string Terms() const override { return ConsistencyName(options_.consistency); }

  absl::Status Agree(const Plan& plan, Deadline deadline) override;
  absl::Status CheckPlan(const Plan& plan) const override { return CheckCodec(options_, plan); }
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override;
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  bool keeps_parameters() const override { return bulk(); }
  absl::StatusOr<SyncHandle> Gather(int bucket) override {
    if (windows_ == nullptr) return engine_->Gather(bucket);
    windows_->Gather(bucket);
    return ResolvedHandle(absl::OkStatus());
  }
  absl::Status StoreParameters(int bucket, Deadline deadline) override;
  absl::Status Settle(Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) override;
  absl::Status Import(const OptimizerState& state, Deadline deadline) override;
  void ForgetResiduals() override { engine_->ForgetResiduals(); }
  RankState ExportResiduals() override { return engine_->ExportResiduals(); }
  void ImportResiduals(const RankState& state) override { engine_->ImportResiduals(state); }
  WireStats wire_stats() const override {
    return windows_ != nullptr ? windows_->wire_stats() : engine_->wire_stats();
  }
  Staleness staleness() const override { return engine_->staleness(); }

  void Halt(const absl::Status& why) override;
  void Fail(const absl::Status& status) override;
  absl::Status Drain(Deadline deadline) override;
  absl::Status Leave(Deadline deadline) override;
  void Close() override;

 private:
  bool bulk() const { return options_.consistency.bulk(); }
  absl::Status MakeBuckets(const Plan& plan, const ShardMap& shards);
  absl::Status MakeEngine(const Plan& plan, const ShardMap& shards);
  void HearReports();
  absl::Status ConnectWindows(Deadline deadline);

  const PsOptions options_;
  std::vector<GradBucket> buckets_;
  bool broadcast_ = false;
  const std::shared_ptr<Reports> reports_ = std::make_shared<Reports>();

  // What a failure, on another thread, ends. Written once by Agree(), under mutex_.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<PsEngine> engine_;
  std::shared_ptr<PsWindows> windows_;  // null without options_.windows
};

// A failure that is known before there is anything to end ends it when it is made.
void PsSync::Fail(const absl::Status& status) {
  std::shared_ptr<PsEngine> engine;
  std::shared_ptr<PsWindows> windows;
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    engine = engine_;
    windows = windows_;
  }
  if (windows != nullptr) windows->Fail(status);
  if (engine != nullptr) engine->FailAll(status);
}

// After a failure nothing that is open here, or launched, may seem to succeed.
void PsSync::Halt(const absl::Status&) {
  std::shared_ptr<PsWindows> windows;
  {
    MutexLock lock(&mutex_);
    windows = windows_;
  }
  if (windows != nullptr) windows->Halt();
}

void PsSync::Close() {
  if (windows_ != nullptr) windows_->Stop();
  if (engine_ != nullptr) {
    const absl::Status left = absl::UnavailableError(
        absl::StrCat("rank ", options_.group.RankOfJob(rank()), " lost: left without goodbye"));
    engine_->FailAll(left);
    if (!engine_->WaitClosed(Deadline::In(kHearing))) {
      engine_->Cancel(left);
      engine_->WaitClosed(Deadline::In(kClosePatience));
    }
  }
  MutexLock lock(&reports_->mutex);
  reports_->to = nullptr;
}

// From here on a stream's error is the group's. One that came before ranks have agreed may be a
// server's refusal of what they will find out themselves.
void PsSync::HearReports() {
  MutexLock lock(&reports_->mutex);
  reports_->to = &host();
  if (!reports_->early.ok()) host().Publish(reports_->early);
}

absl::Status PsSync::MakeBuckets(const Plan& plan, const ShardMap& shards) {
  if (!options_.windows) {
    GS_ASSIGN_OR_RETURN(buckets_, AllocateBuckets(plan));
    return absl::OkStatus();
  }
  PsWindowsOptions options;
  options.group = host().worker();
  options.servers = ServerNames(options_);
  options.update_site = options_.update_site;
  options.report = [this](absl::Status status) { host().Report(std::move(status)); };
  GS_ASSIGN_OR_RETURN(std::shared_ptr<PsWindows> windows,
                      PsWindows::Create(plan, shards, std::move(options)));
  buckets_ = WindowBuckets(windows->group(), rank(), windows->window());
  MutexLock lock(&mutex_);
  windows_ = std::move(windows);
  return absl::OkStatus();
}

absl::Status PsSync::MakeEngine(const Plan& plan, const ShardMap& shards) {
  const std::vector<BucketMemory> memory = MemoryOf(buckets_);
  std::vector<ExchangedBucket> exchanged;
  for (size_t b = 0; b < buckets_.size(); ++b) {
    exchanged.push_back(
        {memory[b].grad, memory[b].param, std::make_shared<const GradBucket>(buckets_[b])});
  }
  PsEngine::Options options;
  options.rank = rank();
  options.name = absl::StrCat("rank ", host().worker().RankOfJob(rank()));
  options.is_member = [group = host().worker(), run = options_.servers_run](int number) {
    if (run) return true;
    const std::string key = ServerBeatKey(group.JobKey(""), number);
    return group.store->Get(key, Deadline::In(absl::Milliseconds(100))).ok();
  };
  options.failure_timeout = host().worker().failure_timeout;
  options.update_site = options_.update_site;
  options.consistency = options_.consistency;
  options.connections = options_.windows
                            ? std::vector<int>(options_.servers.size(), options_.connections)
                            : StreamsByServer(options_.weights, options_.connections);
  options.leads = PushLeads(plan, shards, options.connections, options_.lead);
  options.servers = options_.servers;
  options.numbers = options_.numbers;
  options.names = ServerNames(options_);
  options.recorder = host().worker().recorder;
  options.driver = options_.link->driver();
  const auto report = [reports = reports_](absl::Status status) {
    MutexLock lock(&reports->mutex);
    if (reports->to != nullptr) {
      reports->to->Publish(std::move(status));
    } else {
      reports->early.Update(std::move(status));
    }
  };
  auto engine = std::make_shared<PsEngine>(options, plan, shards, std::move(exchanged), report);
  absl::Status failed;
  {
    MutexLock lock(&mutex_);
    engine_ = std::move(engine);
    failed = failure_;
  }
  if (!failed.ok()) Fail(failed);
  return failed;
}

// Every rank comes to the comparison of plans, also one that cannot connect or is refused by a
// server, so that each can say what differs.
absl::Status PsSync::Agree(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const ShardMap shards, ShardMap::Create(plan, options_.weights));
  GS_RETURN_IF_ERROR(MakeBuckets(plan, shards));
  GS_RETURN_IF_ERROR(MakeEngine(plan, shards));
  const absl::StatusOr<proto::Hello> hello = MakeHello(options_, plan);
  const absl::Status connected =
      hello.ok() ? engine_->Connect(*options_.link, *hello, deadline) : hello.status();
  const absl::Status agreed = AgreeOnTerms(options_, plan, side_channel(), deadline);
  if (absl::IsFailedPrecondition(agreed)) {
    // A server may not have heard both hellos yet, and of a stream that only ended it could say no
    // more than that a worker was lost.
    engine_->LeaveWith(agreed);
    engine_->WaitClosed(std::min(deadline, Deadline::In(kClosePatience)));
    return agreed;
  }
  HearReports();
  if (connected.ok()) return agreed;
  host().Report(connected);  // whatever its code, the others do not know it
  return connected;
}

absl::StatusOr<std::vector<GradBucket>> PsSync::Connect(const Plan&, Deadline deadline) {
  const absl::Status welcomed = engine_->Welcomed().Wait(deadline);
  const bool failed = [this] {
    MutexLock lock(&mutex_);
    return !failure_.ok();
  }();
  if (absl::IsDeadlineExceeded(welcomed) && !failed) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no answer to hello (servers wait for all workers) from ", engine_->UnansweredServers()));
  }
  GS_RETURN_IF_ERROR(welcomed);
  if (windows_ != nullptr) GS_RETURN_IF_ERROR(ConnectWindows(deadline));
  return buckets_;
}

absl::Status PsSync::ConnectWindows(Deadline deadline) {
  GS_ASSIGN_OR_RETURN(std::vector<std::string> addresses,
                      side_channel().AllGather(windows_->address(), deadline));
  for (std::string& server : engine_->ServerWindows()) addresses.push_back(std::move(server));
  if (rank() == 0) engine_->SendWindows(addresses);
  return windows_->Connect(addresses, deadline);
}

absl::StatusOr<SyncHandle> PsSync::Launch(const StepOptions& step, int bucket) {
  if (!bulk() && step.max_norm != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step ", step.step, ": max_norm: expected 0 under ", ConsistencyName(options_.consistency),
        ", where no step has a global norm, found ", step.max_norm));
  }
  return windows_ != nullptr ? windows_->Launch(step, bucket) : engine_->Launch(step, bucket);
}

absl::Status PsSync::Settle(Deadline deadline) {
  return bulk() ? absl::OkStatus() : engine_->Settle().Wait(deadline);
}

absl::Status PsSync::Broadcast(int64_t, Deadline deadline) {
  if (std::exchange(broadcast_, true)) GS_RETURN_IF_ERROR(Settle(deadline));
  // The first barrier: rank 0's values must not arrive where the caller still writes its own. The
  // others expect them from before it.
  if (windows_ != nullptr) {
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    windows_->PullParameters();
  } else if (rank() == 0) {
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    GS_RETURN_IF_ERROR(engine_->TransferParameters().Wait(deadline));
  } else {
    const SyncHandle received = engine_->TransferParameters();
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    GS_RETURN_IF_ERROR(received.Wait(deadline));
  }
  return side_channel().Barrier(deadline);
}

// Nobody writes rank 0's bucket, nor reads what came of it, before all shards have it.
absl::Status PsSync::StoreParameters(int bucket, Deadline deadline) {
  if (windows_ != nullptr) {
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    windows_->StoreParameters(bucket);
  } else if (rank() == 0) {
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    GS_RETURN_IF_ERROR(engine_->TransferBucket(bucket).Wait(deadline));
  } else {
    const SyncHandle received = engine_->TransferBucket(bucket);
    GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
    GS_RETURN_IF_ERROR(received.Wait(deadline));
  }
  return side_channel().Barrier(deadline);
}

absl::StatusOr<OptimizerState> PsSync::Export(int64_t, Deadline deadline) {
  GS_RETURN_IF_ERROR(Settle(deadline));
  OptimizerState state;
  const absl::Status exported = engine_->ExportState(&state).Wait(deadline);
  engine_->ForgetExport();
  GS_RETURN_IF_ERROR(exported);
  // Nobody imports before all have exported.
  GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
  return state;
}

absl::Status PsSync::Import(const OptimizerState& state, Deadline deadline) {
  GS_RETURN_IF_ERROR(Settle(deadline));
  if (rank() == 0) GS_RETURN_IF_ERROR(engine_->ImportState(state).Wait(deadline));
  return side_channel().Barrier(deadline);
}

// Servers are there until all workers say goodbye, which they do together.
absl::Status PsSync::Drain(Deadline deadline) {
  if (host().worker().recorder == nullptr || rank() != 0) return absl::OkStatus();
  return engine_->FetchTraces().Wait(deadline);
}

absl::Status PsSync::Leave(Deadline deadline) {
  // Nobody leaves before all stopped watching for errors.
  GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
  if (windows_ != nullptr) windows_->Leave();
  return engine_->Leave().Wait(deadline);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreatePsGradientSync(const PsOptions& options) {
  GS_ASSIGN_OR_RETURN(const PsOptions complete, CheckPsOptions(options));
  return NewGroupSync(complete.group, "ps",
                      [&](EngineHost& host) { return std::make_unique<PsSync>(host, complete); });
}

}  // namespace gradsync
