#ifndef GRADSYNC_ALLREDUCE_IPC_ENGINE_H_
#define GRADSYNC_ALLREDUCE_IPC_ENGINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "allreduce/device_owner.h"
#include "allreduce/ipc_flags.h"
#include "allreduce/ipc_layout.h"
#include "allreduce/nccl_work.h"
#include "core/base/mutex.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/shared_memory/window.h"

namespace gradsync {

// One rank's exchanges with ranks whose GPU memory it has mapped: queues, on a stream of its own,
// the waits, folds and flags of each, and returns. docs/internals/cuda_ipc.md has the order, and why a rank
// may write its gradient again once the exchange is done.
//
// All ranks make the same exchanges and broadcasts in the same order. Exchange() and Broadcast() do
// not overlap; the rest is thread-safe.
class IpcEngine {
 public:
  // Allocates this rank's region. `names` of ranks, for errors. Errors: those of GpuApi.
  // `refuse` is called on a thread of the driver, and must not wait, when ranks mean different
  // steps; under kOwner.
  static absl::StatusOr<std::unique_ptr<IpcEngine>> Create(
      std::shared_ptr<GpuApi> gpu, IpcLayout layout, int rank, std::vector<std::string> names,
      UpdateSite update_site, std::function<void(absl::Status)> refuse);

  // Waits for nothing: Finish() or Part() has been called, or nothing was connected.
  ~IpcEngine();

  IpcEngine(const IpcEngine&) = delete;
  IpcEngine& operator=(const IpcEngine&) = delete;

  const IpcLayout& layout() const { return layout_; }

  // The region, and what others need to map it (GpuApi::ExportMemory); empty with one rank.
  const std::shared_ptr<GpuMemory>& region() const { return region_; }
  const std::string& exported() const { return exported_; }

  // Once, before the first exchange: maps the others' regions. Both by rank; the own one is not
  // looked at in `exported`. Blocks for the device. After an error: Part(). Errors: those of
  // GpuApi.
  absl::Status Connect(std::vector<std::shared_ptr<Window>> windows,
                       const std::vector<std::string>& exported);

  // Set by Connect().
  IpcFlags& flags() { return *flags_; }

  // Queues everything of exchange number `launch` between the work's two events. Never waits for a
  // peer. Returns whether it is all queued: where an owner clips, only a step's last bucket says
  // so, for all of them. After Halt() nothing is queued: CANCELLED.
  absl::StatusOr<bool> Exchange(uint32_t launch, int bucket, const StepOptions& step,
                                const std::shared_ptr<NcclWork>& work);

  // The same for a copy of rank 0's parameters.
  absl::Status Broadcast(uint32_t launch, NcclWork& work);

  // What this rank keeps as an owner; null under kWorker. For its methods that block, with
  // stream(), while nothing is queued.
  DeviceOwner* owner() const { return owner_.get(); }
  GpuStream stream() const { return stream_.get(); }

  // The group has failed, and this rank knows it: queues nothing any more, and says so to the other
  // ranks. Does not block.
  void Halt();

  // After Halt(), when the others have halted too or cannot: frees the own stream of all that it
  // waits for, waits until it is done, which takes as long as what this rank's compute stream still
  // does, and parts. What is freed computes nonsense, into others' memory too; that is why nobody
  // may take it for a result any more.
  void Finish();

  // Closes the others' memory. Nothing may be queued.
  void Part();

  bool OthersHalted() const { return flags_ == nullptr || flags_->OthersHalted(); }

  // Whether no other rank has this one's region mapped any more.
  bool OthersParted() const { return flags_ == nullptr || flags_->OthersParted(); }

 private:
  struct Bucket {
    std::vector<int> owners;            // others than this rank
    const FoldPiece* pieces = nullptr;  // this rank's, on the device
    const FoldPiece* stored = nullptr;  // the same, of one source
    size_t num_pieces = 0;
    std::vector<ChunkId> chunks;        // of the pieces
    size_t first_square = 0;            // of the chunks, among this rank's sums of squares
    std::vector<const float*> sources;  // gradients by rank
    std::vector<float*> destinations;   // of the mean: under kOwner this rank's alone
    std::vector<float*> params;         // the other ranks'
  };
  // An exchange whose means wait for the norm.
  struct Held {
    uint32_t launch = 0;
    std::shared_ptr<NcclWork> work;
  };

  IpcEngine(std::shared_ptr<GpuApi> gpu, IpcLayout layout, int rank, std::vector<std::string> names,
            UpdateSite update_site, std::function<void(absl::Status)> refuse)
      : gpu_(std::move(gpu)),
        layout_(std::move(layout)),
        rank_(rank),
        names_(std::move(names)),
        update_site_(update_site),
        refuse_(std::move(refuse)) {}

  absl::Status UploadPieces();
  absl::StatusOr<bool> QueueExchange(uint32_t launch, int bucket, const StepOptions& step,
                                     const std::shared_ptr<NcclWork>& work);
  absl::Status QueueFold(uint32_t launch, int bucket, const StepOptions& step);
  absl::Status QueueUpdate(uint32_t launch, int bucket, const StepOptions& step, NcclWork& work);
  absl::Status QueueSquares(int bucket);
  absl::Status QueueClipping(const StepOptions& step);
  absl::Status QueueEnd(uint32_t launch, int bucket, NcclWork& work);
  absl::Status QueueBroadcast(uint32_t launch, NcclWork& work);
  absl::Status CompareSteps(const StepOptions& step, uint32_t turn) const;
  float ClipFactor(double max_norm) const;
  absl::Status AwaitAll(IpcFlags::Counter counter, uint32_t value);

  float* grad(int rank, int bucket) const;
  float* param(int rank, int bucket) const;
  int ranks() const { return layout_.ranks(); }

  const std::shared_ptr<GpuApi> gpu_;
  const IpcLayout layout_;
  const int rank_;
  const std::vector<std::string> names_;
  const UpdateSite update_site_;
  const std::function<void(absl::Status)> refuse_;
  std::shared_ptr<GpuMemory> region_;
  std::string exported_;
  std::shared_ptr<GpuMemory> pieces_;  // on the device: FoldPiece by bucket
  std::vector<Bucket> buckets_;
  std::unique_ptr<DeviceOwner> owner_;  // under kOwner
  std::shared_ptr<GpuMemory> factor_;   // pinned, under kOwner
  std::vector<Held> held_;              // by bucket
  uint32_t steps_ = 0;                  // begun
  ScopedStream stream_;
  ScopedEvent idle_;

  // Set by Connect(); closed by Part().
  std::vector<char*> regions_;  // by rank; null: not mapped
  std::unique_ptr<IpcFlags> flags_;

  std::atomic<bool> halted_{false};
  std::atomic<uint32_t> launched_{0};

  // Held while something is queued. The driver may block there, when a queue of its own is full;
  // once the group has failed, freeing the stream ends that.
  Mutex queueing_;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_IPC_ENGINE_H_
