// A GpuApi without a GPU, for tests.

#ifndef GRADSYNC_GPU_FAKE_GPU_H_
#define GRADSYNC_GPU_FAKE_GPU_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "gpu/gpu_api.h"

namespace gradsync {

// Device memory is the host's, streams are threads that work through a queue, and the kernels are
// those of base/kernels.h.
//
// The compute stream is the calling thread: what a test computes on the host stands for work that
// LibTorch would have queued there. So an event recorded on it is done at once, and what waits on
// it for an event blocks the caller. A test that needs more overrides ComputeStream() with a stream
// that it created.
//
// Thread-safe.
class FakeGpu : public GpuApi {
 public:
  explicit FakeGpu(int device = 0) : device_(device) {}
  // Every stream, event and memory must have been given back.
  ~FakeGpu() override;

  // Queues anything, e.g. what waits for the test.
  void Enqueue(GpuStream stream, std::function<void()> work);

  // The next call of the method of this name (e.g. "Copy") fails, with nothing done.
  void FailNext(absl::string_view method, absl::Status status);

  // How often a thread waited for the device: Synchronize() and RunOnHost() are host work, and
  // a training step has none of the former.
  int synchronizations() const { return synchronizations_.load(); }

  // Calls of a method so far.
  int calls(absl::string_view method) const;

  // Not given back yet: streams, events, memory, registrations.
  int live_objects() const;

  // The streams among them, in the order of their creation.
  std::vector<GpuStream> streams() const;

  // Copies from or to memory of the host that was not pinned, which a GPU makes slowly and, as far
  // as the caller sees, at once.
  int unpinned_copies() const { return unpinned_copies_.load(); }

  int device() const override { return device_; }
  std::string name() const override { return "fake"; }
  bool is_cuda() const override { return false; }
  GpuStream ComputeStream() override { return nullptr; }
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
  absl::Status LookUpBytes(const ImageLayout& layout, const uint8_t* bytes, const void* table,
                           void* values, GpuStream stream) override;

 private:
  absl::Status Call(absl::string_view method);
  absl::StatusOr<void*> Allocate(absl::string_view method, size_t bytes);
  void Release(void* memory);
  bool Known(const void* memory, size_t bytes) const;

  const int device_;
  std::atomic<int> synchronizations_{0};
  std::atomic<int> unpinned_copies_{0};
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::set<void*> live_ ABSL_GUARDED_BY(mutex_);  // streams and events
  std::vector<GpuStream> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<uintptr_t, size_t> memory_ ABSL_GUARDED_BY(mutex_);      // device and pinned: bytes
  std::map<uintptr_t, size_t> registered_ ABSL_GUARDED_BY(mutex_);  // bytes
};

}  // namespace gradsync

#endif  // GRADSYNC_GPU_FAKE_GPU_H_
