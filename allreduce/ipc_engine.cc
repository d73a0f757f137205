// Reduce-scatter and all-gather between GPUs of one host that map each other's memory: a stream
// waits for the others' flags, and kernels on it read their gradients directly, reduce this
// rank's chunks in the plan's order and write the results. The host only queues. docs/internals/cuda_ipc.md
// has the order of flags and kernels, and why a gradient may be written again once the exchange
// is over.

#include "allreduce/ipc_engine.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "core/base/status_macros.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"
#include "core/shared_memory/window_layout.h"

namespace gradsync {
namespace {

constexpr absl::Duration kReleaseInterval = absl::Milliseconds(1);
constexpr absl::Duration kLookInterval = absl::Microseconds(200);

// Frees a stream again and again: others' streams may write older values over what was stored.
class Releaser {
 public:
  Releaser(IpcFlags* flags, const std::atomic<uint32_t>* launched)
      : thread_([this, flags, launched] {
          while (!stop_.load()) {
            flags->Release(launched->load());
            absl::SleepFor(kReleaseInterval);
          }
        }) {}
  ~Releaser() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: uses all of the above
};

std::vector<DeviceOwner::Bucket> OwnedBuckets(const IpcLayout& layout, void* region) {
  char* const begin = static_cast<char*>(region);
  std::vector<DeviceOwner::Bucket> owned;
  for (int b = 0; b < layout.buckets(); ++b) {
    DeviceOwner::Bucket& bucket = owned.emplace_back();
    bucket.grad = reinterpret_cast<float*>(begin + layout.grad_offset(b));
    bucket.param = reinterpret_cast<float*>(begin + layout.param_offset(b));
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      std::vector<ElementRange>& ranges = bucket.ranges.emplace_back();
      for (const FoldPiece& piece : layout.Pieces(b, rank)) {
        ranges.push_back({piece.offset, piece.offset + piece.count});
      }
    }
  }
  return owned;
}

}  // namespace

absl::StatusOr<std::unique_ptr<IpcEngine>> IpcEngine::Create(
    std::shared_ptr<GpuApi> gpu, IpcLayout layout, int rank, std::vector<std::string> names,
    UpdateSite update_site, std::function<void(absl::Status)> refuse) {
  if (layout.ranks() > static_cast<int>(kMostFoldOperands)) {
    return absl::InvalidArgumentError(absl::StrCat("cuda_ipc: expected at most ", kMostFoldOperands,
                                                   " ranks, found ", layout.ranks()));
  }
  std::unique_ptr<IpcEngine> engine(new IpcEngine(
      std::move(gpu), std::move(layout), rank, std::move(names), update_site, std::move(refuse)));
  GS_ASSIGN_OR_RETURN(engine->stream_, ScopedStream::Create(engine->gpu_));
  GS_ASSIGN_OR_RETURN(engine->idle_, ScopedEvent::Create(engine->gpu_));
  GS_ASSIGN_OR_RETURN(engine->region_, GpuMemory::OnDevice(engine->gpu_, engine->layout_.bytes()));
  if (engine->ranks() > 1) {
    GS_ASSIGN_OR_RETURN(engine->exported_, engine->gpu_->ExportMemory(engine->region_->data()));
  }
  GS_RETURN_IF_ERROR(engine->UploadPieces());
  if (update_site == UpdateSite::kOwner) {
    GS_ASSIGN_OR_RETURN(
        engine->owner_,
        DeviceOwner::Create(engine->gpu_, engine->layout_.plan(), rank,
                            OwnedBuckets(engine->layout_, engine->region_->data())));
    GS_ASSIGN_OR_RETURN(engine->factor_, GpuMemory::Pinned(engine->gpu_, sizeof(float)));
  }
  return engine;
}

IpcEngine::~IpcEngine() { Part(); }

float* IpcEngine::grad(int rank, int bucket) const {
  return reinterpret_cast<float*>(regions_[rank] + layout_.grad_offset(bucket));
}

float* IpcEngine::param(int rank, int bucket) const {
  return reinterpret_cast<float*>(regions_[rank] + layout_.param_offset(bucket));
}

// A kernel reads them in every exchange, so they are where it reads fast.
absl::Status IpcEngine::UploadPieces() {
  std::vector<FoldPiece> all;
  std::vector<size_t> begins;
  size_t squares = 0;
  for (int b = 0; b < layout_.buckets(); ++b) {
    std::vector<FoldPiece> own = layout_.Pieces(b, rank_);
    begins.push_back(all.size());
    all.insert(all.end(), own.begin(), own.end());
    for (FoldPiece& piece : own) piece.first = 0;
    all.insert(all.end(), own.begin(), own.end());
    Bucket& bucket = buckets_.emplace_back();
    bucket.num_pieces = own.size();
    bucket.chunks = layout_.Chunks(b, rank_);
    bucket.first_square = squares;
    squares += bucket.chunks.size();
    for (const int owner : layout_.Owners(b)) {
      if (owner != rank_) bucket.owners.push_back(owner);
    }
  }
  const size_t bytes = all.size() * sizeof(FoldPiece);
  GS_ASSIGN_OR_RETURN(pieces_, GpuMemory::OnDevice(gpu_, bytes));
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<GpuMemory> stage, GpuMemory::Pinned(gpu_, bytes));
  std::copy(all.begin(), all.end(), static_cast<FoldPiece*>(stage->data()));
  GS_RETURN_IF_ERROR(gpu_->Copy(pieces_->data(), stage->data(), bytes, stream_.get()));
  GS_RETURN_IF_ERROR(gpu_->Record(idle_.get(), stream_.get()));
  GS_RETURN_IF_ERROR(gpu_->Synchronize(idle_.get()));
  for (int b = 0; b < layout_.buckets(); ++b) {
    buckets_[b].pieces = static_cast<const FoldPiece*>(pieces_->data()) + begins[b];
    buckets_[b].stored = buckets_[b].pieces + buckets_[b].num_pieces;
  }
  return absl::OkStatus();
}

absl::Status IpcEngine::Connect(std::vector<std::shared_ptr<Window>> windows,
                                const std::vector<std::string>& exported) {
  flags_ = std::make_unique<IpcFlags>(gpu_, std::move(windows), rank_);
  GS_RETURN_IF_ERROR(flags_->Register());
  regions_.assign(static_cast<size_t>(ranks()), nullptr);
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_) {
      regions_[rank] = static_cast<char*>(region_->data());
      continue;
    }
    absl::StatusOr<void*> imported = gpu_->ImportMemory(exported[rank]);
    if (!imported.ok()) {
      return absl::Status(
          imported.status().code(),
          absl::StrCat("the buckets of ", names_[rank], ": ", imported.status().message()));
    }
    regions_[rank] = static_cast<char*>(*imported);
  }
  for (int b = 0; b < layout_.buckets(); ++b) {
    for (int rank = 0; rank < ranks(); ++rank) {
      buckets_[b].sources.push_back(grad(rank, b));
      if (owner_ == nullptr || rank == rank_) buckets_[b].destinations.push_back(grad(rank, b));
      if (rank != rank_) buckets_[b].params.push_back(param(rank, b));
    }
  }
  return absl::OkStatus();
}

absl::Status IpcEngine::AwaitAll(IpcFlags::Counter counter, uint32_t value) {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == rank_) continue;
    GS_RETURN_IF_ERROR(flags_->Wait(rank, counter, value, stream_.get()));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> IpcEngine::Exchange(uint32_t launch, int bucket, const StepOptions& step,
                                         const std::shared_ptr<NcclWork>& work) {
  MutexLock lock(&queueing_);
  if (halted_.load()) return absl::CancelledError("the group has failed");
  launched_.store(launch);
  return QueueExchange(launch, bucket, step, work);
}

absl::Status IpcEngine::Broadcast(uint32_t launch, NcclWork& work) {
  MutexLock lock(&queueing_);
  if (halted_.load()) return absl::CancelledError("the group has failed");
  launched_.store(launch);
  return QueueBroadcast(launch, work);
}

absl::StatusOr<bool> IpcEngine::QueueExchange(uint32_t launch, int bucket, const StepOptions& step,
                                              const std::shared_ptr<NcclWork>& work) {
  GS_RETURN_IF_ERROR(work->StartAfterReady(stream_.get()));
  GS_RETURN_IF_ERROR(QueueFold(launch, bucket, step));
  if (owner_ == nullptr) {
    GS_RETURN_IF_ERROR(QueueEnd(launch, bucket, *work));
    return true;
  }
  if (step.max_norm == 0) {
    GS_RETURN_IF_ERROR(QueueUpdate(launch, bucket, step, *work));
    return true;
  }
  GS_RETURN_IF_ERROR(QueueSquares(bucket));
  held_.push_back({launch, work});
  if (held_.size() < buckets_.size()) return false;
  GS_RETURN_IF_ERROR(QueueClipping(step));
  return true;
}

// What comes before a bucket's mean, and the mean, of this rank's pieces.
absl::Status IpcEngine::QueueFold(uint32_t launch, int bucket, const StepOptions& step) {
  const Bucket& b = buckets_[bucket];
  const bool compare = owner_ != nullptr && bucket == 0;
  if (compare) GS_RETURN_IF_ERROR(flags_->WriteNote(++steps_, NoteOf(step), stream_.get()));
  GS_RETURN_IF_ERROR(flags_->Write(IpcFlags::kContributed, launch, stream_.get()));
  if (compare || b.num_pieces > 0) GS_RETURN_IF_ERROR(AwaitAll(IpcFlags::kContributed, launch));
  if (compare) {
    const auto call = [this, step, turn = steps_] {
      const absl::Status same = CompareSteps(step, turn);
      if (!same.ok()) refuse_(same);
    };
    GS_RETURN_IF_ERROR(gpu_->RunOnHost(call, stream_.get()));
  }
  if (b.num_pieces == 0) return absl::OkStatus();
  return gpu_->FoldMean(b.pieces, b.num_pieces, b.sources, b.destinations,
                        1.0f / static_cast<float>(ranks()),
                        static_cast<float>(step.inverse_loss_scale), stream_.get());
}

// The parameters of this rank's pieces, for all. A fold of one source is a copy, in one launch.
absl::Status IpcEngine::QueueUpdate(uint32_t launch, int bucket, const StepOptions& step,
                                    NcclWork& work) {
  const Bucket& b = buckets_[bucket];
  GS_RETURN_IF_ERROR(owner_->Update(bucket, step, stream_.get()));
  if (b.num_pieces > 0 && ranks() > 1) {
    const float* const own = param(rank_, bucket);
    GS_RETURN_IF_ERROR(gpu_->FoldMean(b.stored, b.num_pieces, absl::MakeConstSpan(&own, 1),
                                      b.params, 1.0f, 1.0f, stream_.get()));
  }
  return QueueEnd(launch, bucket, work);
}

absl::Status IpcEngine::QueueSquares(int bucket) {
  const Bucket& b = buckets_[bucket];
  for (size_t i = 0; i < b.chunks.size(); ++i) {
    const ElementRange range = layout_.plan().buckets()[bucket].layout.range(b.chunks[i].slot);
    GS_RETURN_IF_ERROR(
        gpu_->SumOfSquares(grad(rank_, bucket) + range.begin, static_cast<size_t>(range.size()),
                           flags_->squares_on_device() + b.first_square + i, stream_.get()));
  }
  return absl::OkStatus();
}

// With the step's last bucket: what all were held for. Nobody reads this rank's gradients any more
// when all have measured, so they can be scaled as a whole.
absl::Status IpcEngine::QueueClipping(const StepOptions& step) {
  const uint32_t last = held_.back().launch;
  GS_RETURN_IF_ERROR(flags_->Write(IpcFlags::kMeasured, last, stream_.get()));
  GS_RETURN_IF_ERROR(AwaitAll(IpcFlags::kMeasured, last));
  const auto call = [this, max_norm = step.max_norm] { *factor_->floats() = ClipFactor(max_norm); };
  GS_RETURN_IF_ERROR(gpu_->RunOnHost(call, stream_.get()));
  std::vector<Held> held;
  held.swap(held_);
  for (int b = 0; b < static_cast<int>(held.size()); ++b) {
    GS_RETURN_IF_ERROR(gpu_->ScaleBy(grad(rank_, b),
                                     static_cast<size_t>(layout_.plan().buckets()[b].numel),
                                     factor_->floats(), stream_.get()));
    GS_RETURN_IF_ERROR(QueueUpdate(held[b].launch, b, step, *held[b].work));
  }
  return absl::OkStatus();
}

// Every rank says kFolded in every exchange, also without a chunk of its own, so that no counter
// stays behind.
absl::Status IpcEngine::QueueEnd(uint32_t launch, int bucket, NcclWork& work) {
  GS_RETURN_IF_ERROR(flags_->Write(IpcFlags::kFolded, launch, stream_.get()));
  for (const int owner : buckets_[bucket].owners) {
    GS_RETURN_IF_ERROR(flags_->Wait(owner, IpcFlags::kFolded, launch, stream_.get()));
  }
  return work.RecordDone(stream_.get());
}

absl::Status IpcEngine::CompareSteps(const StepOptions& step, uint32_t turn) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    const StepOptions found = StepOf(flags_->ReadNote(rank, turn));
    if (found == step) continue;
    return absl::FailedPreconditionError(absl::StrCat("expected ", DescribeStep(step), " as at ",
                                                      names_[rank_], ", found ",
                                                      DescribeStep(found), " at ", names_[rank]));
  }
  return absl::OkStatus();
}

// Asked in the order of buckets and slots, in which every rank has its own sums.
float IpcEngine::ClipFactor(double max_norm) const {
  std::vector<const double*> next;
  for (int rank = 0; rank < ranks(); ++rank) next.push_back(flags_->squares(rank));
  return static_cast<float>(ClipScale(
      layout_.plan(), max_norm, [&](ChunkId chunk) { return *next[layout_.owner(chunk)]++; }));
}

// Nobody reads rank 0's parameters before they are all there, and rank 0 changes none before all
// have read.
absl::Status IpcEngine::QueueBroadcast(uint32_t launch, NcclWork& work) {
  GS_RETURN_IF_ERROR(work.StartAfterReady(stream_.get()));
  GS_RETURN_IF_ERROR(flags_->Write(IpcFlags::kContributed, launch, stream_.get()));
  if (rank_ != 0) {
    GS_RETURN_IF_ERROR(flags_->Wait(0, IpcFlags::kContributed, launch, stream_.get()));
    for (int b = 0; b < layout_.buckets(); ++b) {
      const size_t bytes = static_cast<size_t>(layout_.plan().buckets()[b].bytes());
      GS_RETURN_IF_ERROR(gpu_->Copy(param(rank_, b), param(0, b), bytes, stream_.get()));
    }
  }
  GS_RETURN_IF_ERROR(flags_->Write(IpcFlags::kFolded, launch, stream_.get()));
  if (rank_ == 0) GS_RETURN_IF_ERROR(AwaitAll(IpcFlags::kFolded, launch));
  return work.RecordDone(stream_.get());
}

void IpcEngine::Halt() {
  halted_.store(true);
  if (flags_ != nullptr) flags_->SetHalted();
}

void IpcEngine::Finish() {
  if (flags_ != nullptr) {
    const Releaser releaser(flags_.get(), &launched_);
    {
      MutexLock lock(&queueing_);  // the last launch is through
    }
    absl::StatusOr<bool> done = false;
    const absl::Status recorded = gpu_->Record(idle_.get(), stream_.get());
    // After an error of CUDA nothing can be asked, and nothing runs.
    while (recorded.ok() && done.ok() && !*done) {
      absl::SleepFor(kLookInterval);
      done = gpu_->Done(idle_.get());
    }
  }
  Part();
}

void IpcEngine::Part() {
  MutexLock lock(&queueing_);
  halted_.store(true);
  for (int rank = 0; rank < static_cast<int>(regions_.size()); ++rank) {
    if (rank != rank_ && regions_[rank] != nullptr) gpu_->CloseImported(regions_[rank]);
  }
  regions_.clear();
  if (flags_ != nullptr) flags_->SetParted();
}

}  // namespace gradsync
