#ifndef GRADSYNC_CORE_GPU_QUEUED_GPU_H_
#define GRADSYNC_CORE_GPU_QUEUED_GPU_H_

#include <thread>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/gpu/fake_gpu.h"

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_QUEUED_GPU_H_
