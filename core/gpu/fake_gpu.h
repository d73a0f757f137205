// A GpuApi without a GPU, for tests.

#ifndef GRADSYNC_CORE_GPU_FAKE_GPU_H_
#define GRADSYNC_CORE_GPU_FAKE_GPU_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/gpu/gpu_api.h"

namespace gradsync {

// Device memory is the host's, streams are threads that work through a queue, and the kernels are
// those of core/base/kernels.h.
//
// The compute stream is the calling thread: what a test computes on the host stands for work that
// LibTorch would have queued there. So an event recorded on it is done at once, and what waits on
// it for an event blocks the caller. A test that needs more overrides ComputeStream() with a stream
// that it created.
//
// It is strict where CUDA is undefined: memory that is freed or unpinned without waiting while
// queued work uses it, or freed by the host's part of a stream's work, is a misuse, which ends the
// test unless it takes it.
//
// Thread-safe.
class FakeGpu : public GpuApi {
 public:
  explicit FakeGpu(int device = 0) : device_(device) {}
  // Every stream, event and memory must have been given back, and every misuse taken. Waits for
  // what destroyed streams have queued.
  ~FakeGpu() override;

  // Memory that queued work uses.
  struct Use {
    const void* memory = nullptr;
    size_t bytes = 0;
  };

  // Queues anything, e.g. what waits for the test.
  void Enqueue(GpuStream stream, std::function<void()> work, std::vector<Use> uses = {});

  // Frees memory of AllocateDevice() without waiting, as ncclMemFree() does. False when queued work
  // uses it: then it stays, and that is a misuse.
  bool ReleaseAtOnce(void* memory);

  // What was freed or unpinned while queued work used it, in words; then forgets it. Such memory
  // stays until the fake goes, so that the work does no harm.
  std::vector<std::string> TakeMisuses();

  // What Elapsed() goes by, MonotonicTime::Now() by default; called on the streams' threads. Before
  // anything is recorded.
  void SetClock(std::function<MonotonicTime()> clock) { clock_ = std::move(clock); }

  // The next call of the method of this name (e.g. "Copy") fails, with nothing done.
  void FailNext(absl::string_view method, absl::Status status);

  // How often a thread waited for the device by Synchronize() or SynchronizeDevice(), which a
  // training step never does.
  int synchronizations() const { return synchronizations_.load(); }

  // Calls of a method so far.
  int calls(absl::string_view method) const;

  // Not given back yet: streams, events, memory, registrations, imports.
  int live_objects() const;

  // The most that AllocateDevice() had given out at a time; each allocation fills whole 256 bytes.
  size_t most_device_bytes() const;

  // The streams among them, in the order of their creation.
  std::vector<GpuStream> streams() const;

  // Copies from or to memory of the host that was not pinned, which a GPU makes slowly and, as far
  // as the caller sees, at once.
  int unpinned_copies() const { return unpinned_copies_.load(); }

  // Memory released while another fake still had it open.
  int early_releases() const { return early_releases_.load(); }

  int device() const override { return device_; }
  std::string name() const override { return "fake"; }
  bool is_cuda() const override { return false; }
  GpuStream ComputeStream() override;
  absl::Status UseOwnComputeStream() override { return Call("UseOwnComputeStream"); }
  void WithComputeStream(GpuStream stream, const std::function<void()>& call) override;
  // A fake graph holds the events that it records, in their order; what a test computes on the host
  // while it is captured happens then, once.
  absl::StatusOr<GpuGraph> Capture(const std::function<absl::Status()>& queue) override;
  absl::Status LaunchGraph(GpuGraph graph) override;
  void DestroyGraph(GpuGraph graph) override;
  absl::Status RecordInGraph(GpuEvent event, GpuStream stream) override;
  absl::StatusOr<GpuStream> CreateStream() override;
  void DestroyStream(GpuStream stream) override;
  absl::StatusOr<GpuEvent> CreateEvent() override;
  void DestroyEvent(GpuEvent event) override;
  absl::Status Record(GpuEvent event, GpuStream stream) override;
  absl::Status StreamWait(GpuStream stream, GpuEvent event) override;
  absl::StatusOr<bool> Done(GpuEvent event) override;
  absl::Status Synchronize(GpuEvent event) override;
  absl::StatusOr<absl::Duration> Elapsed(GpuEvent from, GpuEvent to) override;
  absl::StatusOr<void*> AllocateDevice(size_t bytes) override;
  void ReleaseDevice(void* memory) override;
  absl::StatusOr<void*> AllocatePinned(size_t bytes) override;
  void ReleasePinned(void* memory) override;
  absl::Status RegisterHost(void* memory, size_t bytes) override;
  void UnregisterHost(void* memory) override;
  absl::Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override;
  absl::Status RunOnHost(std::function<void()> call, GpuStream stream) override;
  absl::Status ScaleTwice(float* x, size_t n, float a, float b, GpuStream stream) override;
  absl::Status SgdStep(const SgdCoefficients& c, float* param, const float* grad,
                       float* momentum_buffer, size_t n, GpuStream stream) override;
  absl::Status AdamStep(const AdamCoefficients& c, float* param, const float* grad, float* exp_avg,
                        float* exp_avg_sq, size_t n, GpuStream stream) override;
  absl::Status ScaleBy(float* x, size_t n, const float* factor, GpuStream stream) override;
  absl::Status SumOfSquares(const float* x, size_t n, double* sum, GpuStream stream) override;
  absl::Status FoldMean(const FoldPiece* pieces, size_t num_pieces,
                        absl::Span<const float* const> sources,
                        absl::Span<float* const> destinations, float a, float b,
                        GpuStream stream) override;
  absl::Status SumsOfSquares(const SquaresPiece* pieces, size_t num_pieces, double* sums,
                             GpuStream stream) override;
  absl::Status SynchronizeDevice() override;
  // Between fakes of one process: the memory itself.
  absl::StatusOr<std::string> ExportMemory(void* memory) override;
  absl::StatusOr<void*> ImportMemory(const std::string& handle) override;
  void CloseImported(void* memory) override;
  absl::StatusOr<uint32_t*> FlagOnDevice(void* registered) override;
  absl::Status WriteFlag(uint32_t* flag, uint32_t value, GpuStream stream) override;
  absl::Status WaitFlag(const uint32_t* flag, uint32_t value, GpuStream stream) override;
  absl::Status LookUpBytes(const ImageLayout& layout, const uint8_t* bytes, const void* table,
                           void* values, GpuStream stream) override;

 private:
  // Of floats, for kernels.
  static Use Floats(const float* x, size_t n) { return {x, n * sizeof(float)}; }

  absl::Status Call(absl::string_view method);
  absl::StatusOr<void*> Allocate(absl::string_view method, size_t bytes);
  void AwaitAll(absl::string_view method);
  bool Misused(absl::string_view method, const void* memory, size_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Known(const void* memory, size_t bytes) const;

  const int device_;
  std::function<MonotonicTime()> clock_ = [] { return MonotonicTime::Now(); };
  std::atomic<int> synchronizations_{0};
  std::atomic<int> unpinned_copies_{0};
  std::atomic<int> early_releases_{0};
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::set<void*> live_ ABSL_GUARDED_BY(mutex_);  // streams, events and graphs
  std::vector<GpuEvent>* capturing_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::vector<GpuStream> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<GpuStream> destroyed_ ABSL_GUARDED_BY(mutex_);          // work off what they have
  std::map<int64_t, std::vector<Use>> uses_ ABSL_GUARDED_BY(mutex_);  // by queued work
  int64_t next_work_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> misuses_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> freed_in_use_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, size_t> memory_ ABSL_GUARDED_BY(mutex_);  // device and pinned: bytes
  std::set<uintptr_t> pinned_ ABSL_GUARDED_BY(mutex_);          // of these
  size_t most_device_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uintptr_t, size_t> registered_ ABSL_GUARDED_BY(mutex_);  // bytes
  std::map<uintptr_t, size_t> imported_ ABSL_GUARDED_BY(mutex_);    // bytes
};

// Time in which other threads do what they must not. Nothing that is right waits for it.
inline void GiveOthersTime() {
  for (const Deadline end = Deadline::In(absl::Milliseconds(20)); !end.passed();) {
    std::this_thread::yield();
  }
}

// A FakeGpu whose compute stream is a stream, as a GPU's is, and not the calling thread: a test
// queues there (Enqueue()) what LibTorch would have.
class QueuedGpu : public FakeGpu {
 public:
  static constexpr int kOwnObjects = 1;  // in live_objects(): the stream

  explicit QueuedGpu(int device = 0) : FakeGpu(device), compute_(*CreateStream()) {}
  ~QueuedGpu() override { DestroyStream(compute_); }
  GpuStream ComputeStream() override {
    const GpuStream other = FakeGpu::ComputeStream();  // within WithComputeStream()
    return other != nullptr ? other : compute_;
  }

 private:
  const GpuStream compute_;
};

// A QueuedGpu whose work takes as long as the test says: Elapsed() goes by a clock of its own,
// which nothing but Work() moves on.
class TimedGpu : public QueuedGpu {
 public:
  TimedGpu() {
    SetClock([clock = clock_] { return MonotonicTime() + absl::Nanoseconds(clock->load()); });
  }

  // Queues work on the compute stream.
  void Work(absl::Duration time) {
    Enqueue(ComputeStream(), [clock = clock_, time] { *clock += absl::ToInt64Nanoseconds(time); });
  }

 private:
  const std::shared_ptr<std::atomic<int64_t>> clock_ = std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_FAKE_GPU_H_
