#include "ps_server/client/ps_windows.h"

#include <utility>

#include "absl/memory/memory.h"
#include "core/base/status_macros.h"
#include "core/shared_memory/window_owner.h"

namespace gradsync {
namespace {

std::vector<std::string> NamesOf(const PsWindowsOptions& options) {
  std::vector<std::string> names = options.group.Names();
  names.insert(names.end(), options.servers.begin(), options.servers.end());
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsWindows>> PsWindows::Create(const Plan& plan,
                                                             const ShardMap& shards,
                                                             PsWindowsOptions options) {
  auto windows = absl::WrapUnique(new PsWindows(plan, shards, std::move(options)));
  const WindowGroup& group = *windows->group_;
  const WorkerGroup& job = windows->options_.group;
  const size_t bytes = static_cast<size_t>(group.Layout(job.rank).bytes());
  GS_ASSIGN_OR_RETURN(windows->window_, Window::Create(bytes));
  WindowMeshOptions mesh;
  mesh.members = group.MeshMembers();
  mesh.self = job.rank;
  mesh.greeting = WindowGroup::PsGreeting(job.run_id, job.attempt, plan);
  mesh.window = windows->window_;
  mesh.silence = job.timeout;
  mesh.on_lost = windows->options_.report;
  GS_ASSIGN_OR_RETURN(windows->mesh_, WindowMesh::Create(std::move(mesh)));
  return windows;
}

PsWindows::PsWindows(const Plan& plan, const ShardMap& shards, PsWindowsOptions options)
    : options_(std::move(options)),
      group_(std::make_shared<const WindowGroup>(plan, shards, NamesOf(options_),
                                                 options_.update_site)) {}

PsWindows::~PsWindows() {
  if (mesh_ != nullptr) Stop();
}

absl::Status PsWindows::Connect(const std::vector<std::string>& addresses, Deadline deadline) {
  const absl::Status connected = mesh_->Connect(addresses, deadline);
  std::vector<std::shared_ptr<Window>> windows;
  for (int member = 0; connected.ok() && member < group_->members(); ++member) {
    windows.push_back(mesh_->window(member));
  }
  MutexLock lock(&mutex_);
  GS_RETURN_IF_ERROR(failed_);
  GS_RETURN_IF_ERROR(connected);
  WindowEngineOptions engine;
  engine.windows = std::make_shared<GroupWindows>(group_, options_.group.rank, std::move(windows));
  if (options_.update_site == UpdateSite::kWorker) {
    engine.owner = std::make_shared<WindowOwner>(engine.windows.get(), /*update=*/nullptr,
                                                 options_.group.recorder);
  }
  engine.report = options_.report;
  engine_ = WindowEngine::Start(std::move(engine));
  return absl::OkStatus();
}

void PsWindows::Halt() {
  MutexLock lock(&mutex_);
  if (engine_ != nullptr) engine_->Halt();
}

void PsWindows::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  failed_.Update(status);
  mesh_->Cancel();
  if (engine_ != nullptr) engine_->Fail(status);
}

void PsWindows::Stop() {
  if (engine_ != nullptr) engine_->Stop();
  mesh_->Stop();
}

WireStats PsWindows::wire_stats() const {
  return engine_ == nullptr ? WireStats() : engine_->wire_stats();
}

}  // namespace gradsync
