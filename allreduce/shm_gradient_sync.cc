#include "allreduce/shm_gradient_sync.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "allreduce/shm_engine.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/plan/codec.h"
#include "core/shared_memory/mesh_addresses.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_mesh.h"
#include "core/sync/buckets.h"
#include "core/sync/group_sync.h"
#include "core/sync/sync_engine.h"

namespace gradsync {
namespace {

class ShmSync : public SyncEngine {
 public:
  ShmSync(EngineHost& host, UpdateSite update_site) : SyncEngine(host), update_site_(update_site) {}

  SyncIdentity identity() const override { return {Backend::kRingOverShm}; }
  UpdateSite update_site() const override { return update_site_; }
  std::string Terms() const override { return ""; }

  absl::Status CheckPlan(const Plan& plan) const override {
    return CheckUncompressed(plan.codec(), "ranks read each other's memory, which is no wire");
  }
  absl::StatusOr<std::vector<GradBucket>> Connect(const Plan& plan, Deadline deadline) override;
  absl::StatusOr<SyncHandle> Launch(const StepOptions& step, int bucket) override {
    return engine_->Launch(step, bucket);
  }
  absl::Status Broadcast(int64_t steps, Deadline deadline) override;
  bool keeps_parameters() const override { return true; }
  absl::StatusOr<SyncHandle> Gather(int bucket) override {
    engine_->Gather(bucket);
    return ResolvedHandle(absl::OkStatus());
  }
  absl::Status StoreParameters(int bucket, Deadline deadline) override;
  absl::StatusOr<OptimizerState> Export(int64_t steps, Deadline deadline) override {
    return engine_->owner().Export(steps, side_channel(), deadline);
  }
  absl::Status Import(const OptimizerState& state, Deadline) override {
    engine_->owner().Import(state);
    return absl::OkStatus();
  }
  WireStats wire_stats() const override { return engine_->wire_stats(); }

  void Halt(const absl::Status& why) override;
  void Fail(const absl::Status& status) override;
  absl::Status Leave(Deadline) override {
    if (mesh_ != nullptr) mesh_->Leave();
    return absl::OkStatus();
  }
  void Close() override {
    if (engine_ != nullptr) engine_->Stop();
    if (mesh_ != nullptr) mesh_->Stop();
  }

 private:
  absl::StatusOr<std::string> MakeWindow(const Plan& plan);
  absl::Status MakeEngine();
  std::shared_ptr<ShmEngine> EngineToEnd();

  const UpdateSite update_site_;
  std::shared_ptr<const WindowGroup> window_group_;
  std::shared_ptr<Window> window_;

  // What a failure, on another thread, ends.
  Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<WindowMesh> mesh_;  // written once by Connect(), under mutex_; null with one rank
  std::shared_ptr<ShmEngine> engine_;  // the same; destroyed before the mesh
};

absl::StatusOr<std::vector<GradBucket>> ShmSync::Connect(const Plan& plan, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> addresses,
                      ExchangeMeshAddresses(
                          side_channel(), [&] { return MakeWindow(plan); }, deadline));
  if (mesh_ != nullptr) GS_RETURN_IF_ERROR(mesh_->Connect(addresses, deadline));
  GS_RETURN_IF_ERROR(MakeEngine());
  return WindowBuckets(*window_group_, rank(), window_);
}

// Returns where the mesh listens; nowhere with one rank.
absl::StatusOr<std::string> ShmSync::MakeWindow(const Plan& plan) {
  window_group_ = std::make_shared<const WindowGroup>(plan, /*shards=*/absl::nullopt,
                                                      host().worker().Names(), update_site_);
  const size_t bytes = static_cast<size_t>(window_group_->Layout(rank()).bytes());
  GS_ASSIGN_OR_RETURN(window_, Window::Create(bytes));
  if (world_size() == 1) return std::string();
  WindowMeshOptions options;
  options.members = window_group_->MeshMembers();
  options.self = rank();
  options.greeting = absl::StrCat(host().worker().Key("shm"), " plan ", plan.fingerprint());
  options.window = window_;
  options.silence = host().worker().timeout;
  options.on_lost = [this](absl::Status status) { host().Report(std::move(status)); };
  GS_ASSIGN_OR_RETURN(std::shared_ptr<WindowMesh> mesh, WindowMesh::Create(std::move(options)));
  MutexLock lock(&mutex_);
  mesh_ = std::move(mesh);
  if (!failure_.ok()) return failure_;
  return mesh_->address();
}

absl::Status ShmSync::MakeEngine() {
  ShmEngineOptions options;
  options.group = window_group_;
  options.rank = rank();
  options.update_site = update_site_;
  for (int rank = 0; rank < world_size(); ++rank) {
    options.windows.push_back(mesh_ != nullptr ? mesh_->window(rank) : window_);
  }
  options.report = [this](absl::Status status) { host().Report(std::move(status)); };
  options.recorder = host().worker().recorder;
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  engine_ = std::make_shared<ShmEngine>(std::move(options));
  return absl::OkStatus();
}

absl::Status ShmSync::Broadcast(int64_t, Deadline deadline) {
  if (world_size() == 1) return absl::OkStatus();
  // Nobody reads rank 0's parameters before they are all there, nor writes any before all have
  // read.
  GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
  engine_->PullParameters();
  return side_channel().Barrier(deadline);
}

// Nobody writes rank 0's bucket, nor reads what came of it, before all shards have it.
absl::Status ShmSync::StoreParameters(int bucket, Deadline deadline) {
  GS_RETURN_IF_ERROR(side_channel().Barrier(deadline));
  engine_->StoreParameters(bucket);
  return side_channel().Barrier(deadline);
}

std::shared_ptr<ShmEngine> ShmSync::EngineToEnd() {
  MutexLock lock(&mutex_);
  return engine_;
}

void ShmSync::Halt(const absl::Status&) {
  if (const std::shared_ptr<ShmEngine> engine = EngineToEnd()) engine->Halt();
}

void ShmSync::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    failure_ = status;
    if (mesh_ != nullptr) mesh_->Cancel();
  }
  if (const std::shared_ptr<ShmEngine> engine = EngineToEnd()) engine->Fail(status);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateShmRingGradientSync(
    const ShmRingOptions& options) {
  return NewGroupSync(options.group, "shm", [&](EngineHost& host) {
    return std::make_unique<ShmSync>(host, options.update_site);
  });
}

}  // namespace gradsync
