#include "ps_client/window_exchange.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<WindowExchange>> WindowExchange::Create(
    const Plan& plan, const ShardMap& shards, WindowExchangeOptions options) {
  auto exchange = absl::WrapUnique(new WindowExchange(plan, shards, std::move(options)));
  const WindowGroup& group = *exchange->group_;
  const WorkerGroup& job = exchange->options_.group;
  const size_t bytes = static_cast<size_t>(group.Layout(job.rank).bytes());
  GS_ASSIGN_OR_RETURN(exchange->window_, Window::Create(bytes));
  WindowMeshOptions mesh;
  mesh.members = group.MeshMembers();
  for (size_t server = 0; server < exchange->options_.servers.size(); ++server) {
    std::string& name = mesh.members[group.workers() + server].name;
    absl::StrAppend(&name, " (", exchange->options_.servers[server], ")");
  }
  mesh.self = job.rank;
  mesh.greeting = WindowGroup::PsGreeting(job.run_id, job.attempt, plan);
  mesh.window = exchange->window_;
  mesh.silence = job.timeout;
  mesh.on_lost = exchange->options_.report;
  GS_ASSIGN_OR_RETURN(exchange->mesh_, WindowMesh::Create(std::move(mesh)));
  return exchange;
}

WindowExchange::WindowExchange(const Plan& plan, const ShardMap& shards,
                               WindowExchangeOptions options)
    : options_(std::move(options)), group_(std::make_shared<const WindowGroup>(plan, shards)) {}

WindowExchange::~WindowExchange() {
  if (mesh_ != nullptr) Stop();
}

absl::Status WindowExchange::Connect(const std::vector<std::string>& addresses, Deadline deadline) {
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
  engine.report = options_.report;
  engine_ = WindowEngine::Start(std::move(engine));
  return absl::OkStatus();
}

void WindowExchange::Halt() {
  MutexLock lock(&mutex_);
  if (engine_ != nullptr) engine_->Halt();
}

void WindowExchange::Fail(const absl::Status& status) {
  MutexLock lock(&mutex_);
  failed_.Update(status);
  mesh_->Cancel();
  if (engine_ != nullptr) engine_->Fail(status);
}

void WindowExchange::Stop() {
  if (engine_ != nullptr) engine_->Stop();
  mesh_->Stop();
}

WireStats WindowExchange::wire_stats() const {
  return engine_ == nullptr ? WireStats() : engine_->wire_stats();
}

}  // namespace gradsync
