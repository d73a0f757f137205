// Servers and workers of one host: no gradient is sent. Workers post in shared memory that a
// bucket is complete; a thread of the server reads all contributions to the chunks that it owns,
// adds them in the plan's order and writes results where workers read them.
// docs/internals/shared_memory.md.

#include "ps_server/window_shard.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/chunk_codec.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"

namespace gradsync {
namespace {

// What the job is told of `status`, which is the server's own where it does not begin with a member
// that is to blame. Who only waited has not failed.
absl::Status Verdict(absl::string_view server, const absl::Status& status) {
  if (BeginsWithCulprit(status.message())) return status;
  return absl::Status(status.code(),
                      absl::IsDeadlineExceeded(status)
                          ? absl::StrCat("nobody is known to have failed, but ", server,
                                         " waited in vain: ", status.message())
                          : absl::StrCat(server, " failed first: ", status.ToString()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<WindowShard>> WindowShard::Create(WindowShardOptions options) {
  auto shard = absl::WrapUnique(new WindowShard(std::move(options)));
  const size_t bytes = static_cast<size_t>(shard->group_->Layout(shard->self_).bytes());
  GS_ASSIGN_OR_RETURN(shard->window_, Window::Create(bytes));
  WindowMeshOptions mesh;
  mesh.members = shard->group_->MeshMembers();
  mesh.self = shard->self_;
  mesh.greeting = shard->options_.greeting;
  mesh.window = shard->window_;
  mesh.silence = shard->options_.timeout;
  mesh.on_lost = shard->options_.on_failure;
  GS_ASSIGN_OR_RETURN(shard->mesh_, WindowMesh::Create(std::move(mesh)));
  return shard;
}

WindowShard::WindowShard(WindowShardOptions options)
    : options_(std::move(options)),
      group_(std::make_shared<const WindowGroup>(
          options_.plan, options_.shards, options_.names,
          options_.site == proto::OWNER ? UpdateSite::kOwner : UpdateSite::kWorker)),
      self_(group_->owners().first + options_.server),
      chunks_(group_->OwnedChunks(self_)),
      slot_names_(SlotNames(options_.plan.optimizer())) {
  if (options_.site != proto::OWNER) return;
  const auto optimizer = std::make_shared<const RangeOptimizer::Shared>(options_.plan.optimizer());
  MutexLock lock(&state_mutex_);
  for (ChunkId id : chunks_) {
    const ElementRange range = options_.plan.buckets()[id.bucket].layout.range(id.slot);
    optimizers_.emplace_back(optimizer, range, options_.plan.GroupRanges(id.bucket, range));
  }
}

WindowShard::~WindowShard() {
  Halt();
  if (thread_.joinable()) thread_.join();
  if (mesh_ != nullptr) mesh_->Stop();
}

absl::Status WindowShard::Expects(proto::FrameHeader::Kind kind) const {
  switch (kind) {
    case proto::FrameHeader::PUSH:
    case proto::FrameHeader::PARAMETERS:
    case proto::FrameHeader::NORM:
    case proto::FrameHeader::SETTLE:
      return absl::InvalidArgumentError(
          absl::StrCat("expected gradients and parameters through windows, found ",
                       proto::FrameHeader::Kind_Name(kind)));
    default:
      return absl::OkStatus();
  }
}

absl::Status WindowShard::Begin(std::vector<std::string> addresses) {
  if (static_cast<int>(addresses.size()) != group_->members()) {
    return absl::InvalidArgumentError(absl::StrCat("windows: expected ", group_->members(),
                                                   " addresses, found ", addresses.size()));
  }
  MutexLock lock(&mutex_);
  if (std::exchange(begun_, true)) {
    return absl::InvalidArgumentError("windows: expected their addresses once, found them twice");
  }
  thread_ = std::thread([this, addresses = std::move(addresses)] { Run(addresses); });
  return absl::OkStatus();
}

void WindowShard::Halt() {
  MutexLock lock(&mutex_);
  halted_ = true;
  if (mesh_ != nullptr) mesh_->Cancel();
  if (owner_ != nullptr) owner_->Halt();
}

void WindowShard::Run(const std::vector<std::string>& addresses) {
  const absl::Status connected = mesh_->Connect(addresses, Deadline::In(options_.timeout));
  if (!connected.ok()) return Fail(connected);
  std::vector<std::shared_ptr<Window>> mapped;
  for (int member = 0; member < group_->members(); ++member) {
    mapped.push_back(mesh_->window(member));
  }
  ChunkUpdater update;
  if (options_.site == proto::OWNER) {
    update = [this](size_t chunk, float* param, const float* mean, const StepOptions& step) {
      Update(chunk, param, mean, step);
    };
  }
  auto windows = std::make_unique<GroupWindows>(group_, self_, std::move(mapped));
  auto owner = std::make_unique<WindowOwner>(windows.get(), std::move(update), recorder());
  GroupWindows& windows_here = *windows;
  WindowOwner& owner_here = *owner;
  {
    MutexLock lock(&mutex_);
    if (halted_) return;
    windows_ = std::move(windows);
    owner_ = std::move(owner);
  }
  Reduce(windows_here, owner_here);
}

void WindowShard::Reduce(GroupWindows& windows, WindowOwner& owner) {
  const int64_t buckets = static_cast<int64_t>(options_.plan.buckets().size());
  while (true) {
    // In the middle of a step, the next bucket is often close.
    windows.signals().Await(
        WindowSignals::kThread, [&owner] { return owner.halted() || owner.CanReduce(); },
        owner.reduced() % buckets != 0 ? kWindowSpin : absl::ZeroDuration());
    if (owner.halted()) return;
    const absl::Status reduced = owner.Reduce(/*help=*/false);
    if (!reduced.ok()) return Fail(reduced);
  }
}

// Halt() is no failure of its own: who called it knows why.
void WindowShard::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mutex_);
    if (halted_) return;
  }
  options_.on_failure(Verdict(group_->Name(self_), status));
}

void WindowShard::Update(size_t chunk, float* param, const float* mean, const StepOptions& step) {
  MutexLock lock(&state_mutex_);
  optimizers_[chunk].Apply(param, mean, step.lr, step.step);
}

WindowOwner* WindowShard::owner() const {
  MutexLock lock(&mutex_);
  return owner_.get();
}

// Under update at the worker, workers may have done this server's part without ringing it.
int64_t WindowShard::launches() const {
  const WindowOwner* const here = owner();
  if (here == nullptr) return 0;
  return options_.site == proto::OWNER ? here->reduced() : here->launched();
}

bool WindowShard::idle() const {
  return launches() % static_cast<int64_t>(options_.plan.buckets().size()) == 0;
}

int64_t WindowShard::steps() const { return group_->LaunchesOf(0, launches()); }

void WindowShard::CountTraffic(ServerStats* stats) const {
  stats->tx_bytes = stats->tx_messages = 0;
  const int64_t launches = this->launches();
  for (int bucket = 0; bucket < static_cast<int>(options_.plan.buckets().size()); ++bucket) {
    const WindowGroup::Stored stored = group_->StoredBy(self_, bucket);
    const int64_t times = group_->LaunchesOf(bucket, launches);
    stats->tx_bytes += times * stored.bytes;
    stats->tx_messages += times * stored.messages;
  }
  stats->step_tx_bytes = stats->tx_bytes;
}

absl::Status WindowShard::CheckStateAccess() const {
  if (options_.site != proto::OWNER) {
    return absl::FailedPreconditionError(
        "optimizer state: expected update at the owner, found update at the worker");
  }
  if (!idle()) {
    return absl::FailedPreconditionError(
        "optimizer state: expected a time between steps, found a step under way");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ShardState>> WindowShard::ExportState() {
  GS_RETURN_IF_ERROR(CheckStateAccess());
  const WindowOwner* const here = owner();
  const int64_t done = steps();
  auto state = std::make_shared<ShardState>();
  MutexLock lock(&state_mutex_);
  state->step = done > steps_at_import_ ? here->last_step() : imported_step_;
  for (size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
    const RangeOptimizer& optimizer = optimizers_[chunk];
    for (size_t slot = 0; slot < slot_names_.size() && optimizer.has_state(); ++slot) {
      std::shared_ptr<LentBuffer> values = LentBuffer::Create(optimizer.size());
      if (values == nullptr) {
        return absl::ResourceExhaustedError(
            absl::StrCat("no memory for ", 4 * optimizer.size(), " bytes of optimizer state"));
      }
      absl::c_copy(optimizer.slot(static_cast<int>(slot)), values->data());
      state->pieces.push_back({slot_names_[slot], chunks_[chunk], std::move(values)});
    }
  }
  return state;
}

absl::Status WindowShard::ImportPiece(absl::string_view name, ChunkId id, const Payload& payload) {
  GS_RETURN_IF_ERROR(CheckStateAccess());
  const auto chunk = absl::c_find(chunks_, id);
  const auto slot = absl::c_find(slot_names_, name);
  if (chunk == chunks_.end() || slot == slot_names_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "optimizer state \"", name, "\" of bucket ", id.bucket, " slot ", id.slot,
        ": expected a chunk of this server and a slot of the plan's optimizer, found another"));
  }
  MutexLock lock(&state_mutex_);
  if (imported_++ == 0) {
    for (RangeOptimizer& optimizer : optimizers_) optimizer.ClearState();
  }
  const absl::Span<float> values = optimizers_[chunk - chunks_.begin()].mutable_slot(
      static_cast<int>(slot - slot_names_.begin()));
  FloatCopier copier(values.data(), values.size());
  for (absl::Span<const char> part : payload.parts) {
    GS_RETURN_IF_ERROR(copier.Consume(absl::string_view(part.data(), part.size())));
  }
  return copier.Finish();
}

absl::Status WindowShard::FinishImport(int64_t step, size_t pieces) {
  GS_RETURN_IF_ERROR(CheckStateAccess());
  const int64_t done = steps();
  MutexLock lock(&state_mutex_);
  const size_t imported = std::exchange(imported_, 0);
  if (step < 0 || imported != pieces) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer state: expected ", pieces,
                                                   " pieces and a step of at least 0, found ",
                                                   imported, " and step ", step));
  }
  if (imported == 0) {
    for (RangeOptimizer& optimizer : optimizers_) optimizer.ClearState();
  }
  imported_step_ = step;
  steps_at_import_ = done;
  return absl::OkStatus();
}

}  // namespace gradsync
