// One server's part of all buckets when workers and servers share memory.

#ifndef GRADSYNC_PS_SERVER_WINDOW_SHARD_H_
#define GRADSYNC_PS_SERVER_WINDOW_SHARD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/optim/range_optimizer.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_group.h"
#include "core/shared_memory/window_mesh.h"
#include "core/shared_memory/window_owner.h"
#include "proto/parameter_server.pb.h"
#include "ps_server/shard.h"

namespace gradsync {

struct WindowShardOptions {
  Plan plan;
  ShardMap shards;
  int server = 0;
  proto::UpdateSite site = proto::WORKER;
  std::string greeting;                        // as WindowMeshOptions has it
  std::vector<std::string> names;              // of members: all workers, all servers; for errors
  absl::Duration timeout = absl::Seconds(60);  // to connect; and of a member's silence
  // With who is to blame in front, or with this server as who found it. Must not block; not after
  // the destructor.
  std::function<void(absl::Status)> on_failure;
};

// The owner's half of exchanges (core/shared_memory/window_owner.h) on a thread of its own, with
// the optimizers of the shard's chunks. Keeps no gradients or parameters: it works in the workers'
// windows. Without optimizers it sleeps through small buckets, whose chunks the workers do.
// Thread-safe.
class WindowShard : public Shard {
 public:
  // Errors: those of Window::Create() and WindowMesh::Create().
  static absl::StatusOr<std::unique_ptr<WindowShard>> Create(WindowShardOptions options);
  ~WindowShard() override;

  std::string window() const override { return mesh_->address(); }
  absl::Status Expects(proto::FrameHeader::Kind kind) const override;

  // Connects to all members, found at `addresses`, and serves them from then on; on the thread.
  // Errors: INVALID_ARGUMENT when called twice, or with addresses for another number of members.
  absl::Status Begin(std::vector<std::string> addresses) override;

  // Stores no more into any window, and ends the attempt to connect. Does not block.
  void Halt() override;

  void End() override { mesh_->Leave(); }

  // What is stored into the workers' windows.
  void CountTraffic(ServerStats* stats) const override;

  // Under update at the owner, where state is kept.
  absl::StatusOr<std::shared_ptr<const ShardState>> ExportState() override;
  absl::Status ImportPiece(absl::string_view name, ChunkId id, const Payload& payload) override;
  absl::Status FinishImport(int64_t step, size_t pieces) override;
  bool idle() const override;
  int64_t steps() const override;

 private:
  explicit WindowShard(WindowShardOptions options);

  void Run(const std::vector<std::string>& addresses);
  void Reduce(GroupWindows& windows, WindowOwner& owner);
  void Fail(const absl::Status& status);
  void Update(size_t chunk, float* param, const float* mean, const StepOptions& step);
  absl::Status CheckStateAccess() const;
  WindowOwner* owner() const;
  int64_t launches() const;

  const WindowShardOptions options_;
  const std::shared_ptr<const WindowGroup> group_;
  const int self_;  // as a member
  const std::vector<ChunkId> chunks_;
  const std::vector<std::string> slot_names_;
  std::shared_ptr<Window> window_;
  std::unique_ptr<WindowMesh> mesh_;

  mutable Mutex state_mutex_;
  std::vector<RangeOptimizer> optimizers_ ABSL_GUARDED_BY(state_mutex_);  // by chunk
  size_t imported_ ABSL_GUARDED_BY(state_mutex_) = 0;
  int64_t imported_step_ ABSL_GUARDED_BY(state_mutex_) = 0;
  int64_t steps_at_import_ ABSL_GUARDED_BY(state_mutex_) = 0;

  mutable Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool halted_ ABSL_GUARDED_BY(mutex_) = false;
  // Made by the thread once all are connected; then constant.
  std::unique_ptr<GroupWindows> windows_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WindowOwner> owner_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_WINDOW_SHARD_H_
