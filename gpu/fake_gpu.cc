#include "gpu/fake_gpu.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "base/kernels.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

// A point in a stream's work, which others wait for.
class Milestone {
 public:
  void Reach() {
    MutexLock lock(&mutex_);
    reached_ = true;
    time_ = absl::Now();
    changed_.SignalAll();
  }
  bool reached() const {
    MutexLock lock(&mutex_);
    return reached_;
  }
  void Await() const {
    MutexLock lock(&mutex_);
    while (!reached_) changed_.Wait(&mutex_);
  }
  absl::Time time() const {
    MutexLock lock(&mutex_);
    return time_;
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  bool reached_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time time_ ABSL_GUARDED_BY(mutex_);
};

class FakeStream {
 public:
  FakeStream() : thread_([this] { Run(); }) {}
  // Works off what is queued.
  ~FakeStream() {
    {
      MutexLock lock(&mutex_);
      closing_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }

  void Enqueue(std::function<void()> work) {
    MutexLock lock(&mutex_);
    queue_.push_back(std::move(work));
    changed_.SignalAll();
  }

 private:
  void Run() {
    while (true) {
      std::function<void()> work;
      {
        MutexLock lock(&mutex_);
        while (queue_.empty() && !closing_) changed_.Wait(&mutex_);
        if (queue_.empty()) return;
        work = std::move(queue_.front());
        queue_.pop_front();
      }
      work();
    }
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

class FakeEvent {
 public:
  void Set(std::shared_ptr<Milestone> milestone) {
    MutexLock lock(&mutex_);
    milestone_ = std::move(milestone);
  }
  // Null: never recorded.
  std::shared_ptr<Milestone> milestone() const {
    MutexLock lock(&mutex_);
    return milestone_;
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<Milestone> milestone_ ABSL_GUARDED_BY(mutex_);
};

FakeStream* Of(GpuStream stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* Of(GpuEvent event) { return reinterpret_cast<FakeEvent*>(event); }

}  // namespace

FakeGpu::~FakeGpu() { assert(live_objects() == 0); }

void FakeGpu::Enqueue(GpuStream stream, std::function<void()> work) {
  if (stream == nullptr) return work();
  Of(stream)->Enqueue(std::move(work));
}

void FakeGpu::FailNext(absl::string_view method, absl::Status status) {
  MutexLock lock(&mutex_);
  failures_[std::string(method)] = std::move(status);
}

int FakeGpu::calls(absl::string_view method) const {
  MutexLock lock(&mutex_);
  const auto found = calls_.find(std::string(method));
  return found == calls_.end() ? 0 : found->second;
}

int FakeGpu::live_objects() const {
  MutexLock lock(&mutex_);
  return static_cast<int>(live_.size() + memory_.size() + registered_.size());
}

std::vector<GpuStream> FakeGpu::streams() const {
  MutexLock lock(&mutex_);
  return streams_;
}

absl::Status FakeGpu::Call(absl::string_view method) {
  MutexLock lock(&mutex_);
  ++calls_[std::string(method)];
  const auto found = failures_.find(std::string(method));
  if (found == failures_.end()) return absl::OkStatus();
  absl::Status status = std::move(found->second);
  failures_.erase(found);
  return status;
}

absl::StatusOr<GpuStream> FakeGpu::CreateStream() {
  GS_RETURN_IF_ERROR(Call("CreateStream"));
  auto* const stream = new FakeStream;
  MutexLock lock(&mutex_);
  live_.insert(stream);
  streams_.push_back(reinterpret_cast<GpuStream>(stream));
  return streams_.back();
}

void FakeGpu::DestroyStream(GpuStream stream) {
  delete Of(stream);
  MutexLock lock(&mutex_);
  live_.erase(stream);
  streams_.erase(std::find(streams_.begin(), streams_.end(), stream));
}

absl::StatusOr<GpuEvent> FakeGpu::CreateEvent() {
  GS_RETURN_IF_ERROR(Call("CreateEvent"));
  auto* const event = new FakeEvent;
  MutexLock lock(&mutex_);
  live_.insert(event);
  return reinterpret_cast<GpuEvent>(event);
}

void FakeGpu::DestroyEvent(GpuEvent event) {
  delete Of(event);
  MutexLock lock(&mutex_);
  live_.erase(event);
}

absl::Status FakeGpu::Record(GpuEvent event, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("Record"));
  auto milestone = std::make_shared<Milestone>();
  Of(event)->Set(milestone);
  Enqueue(stream, [milestone] { milestone->Reach(); });
  return absl::OkStatus();
}

absl::Status FakeGpu::StreamWait(GpuStream stream, GpuEvent event) {
  GS_RETURN_IF_ERROR(Call("StreamWait"));
  const std::shared_ptr<Milestone> milestone = Of(event)->milestone();
  if (milestone != nullptr) Enqueue(stream, [milestone] { milestone->Await(); });
  return absl::OkStatus();
}

absl::StatusOr<bool> FakeGpu::Done(GpuEvent event) {
  GS_RETURN_IF_ERROR(Call("Done"));
  const std::shared_ptr<Milestone> milestone = Of(event)->milestone();
  return milestone == nullptr || milestone->reached();
}

absl::Status FakeGpu::Synchronize(GpuEvent event) {
  GS_RETURN_IF_ERROR(Call("Synchronize"));
  ++synchronizations_;
  const std::shared_ptr<Milestone> milestone = Of(event)->milestone();
  if (milestone != nullptr) milestone->Await();
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> FakeGpu::Elapsed(GpuEvent from, GpuEvent to) {
  GS_RETURN_IF_ERROR(Call("Elapsed"));
  const std::shared_ptr<Milestone> begin = Of(from)->milestone();
  const std::shared_ptr<Milestone> end = Of(to)->milestone();
  if (begin == nullptr || end == nullptr || !begin->reached() || !end->reached()) {
    return absl::InternalError("Elapsed: expected events that are done, found one that is not");
  }
  return end->time() - begin->time();
}

absl::StatusOr<void*> FakeGpu::Allocate(absl::string_view method, size_t bytes) {
  GS_RETURN_IF_ERROR(Call(method));
  constexpr size_t kAlignment = 256;
  const size_t size = std::max<size_t>((bytes + kAlignment - 1) / kAlignment, 1) * kAlignment;
  void* const memory = std::aligned_alloc(kAlignment, size);
  if (memory == nullptr) return absl::ResourceExhaustedError("the fake GPU is out of memory");
  std::memset(memory, 0, size);
  MutexLock lock(&mutex_);
  memory_[reinterpret_cast<uintptr_t>(memory)] = size;
  return memory;
}

void FakeGpu::Release(void* memory) {
  MutexLock lock(&mutex_);
  memory_.erase(reinterpret_cast<uintptr_t>(memory));
  std::free(memory);
}

absl::Status FakeGpu::RegisterHost(void* memory, size_t bytes) {
  GS_RETURN_IF_ERROR(Call("RegisterHost"));
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  if (begin % kPage != 0 || bytes % kPage != 0 || bytes == 0) {
    return absl::InternalError("RegisterHost: expected whole pages");
  }
  MutexLock lock(&mutex_);
  const auto next = registered_.lower_bound(begin);
  if ((next != registered_.end() && next->first < begin + bytes) ||
      (next != registered_.begin() &&
       std::prev(next)->first + std::prev(next)->second > begin)) {
    return absl::InternalError("RegisterHost: expected pages that are not registered yet");
  }
  registered_[begin] = bytes;
  return absl::OkStatus();
}

void FakeGpu::UnregisterHost(void* memory) {
  MutexLock lock(&mutex_);
  registered_.erase(reinterpret_cast<uintptr_t>(memory));
}

// Whether a copy of a GPU could reach it: memory of the device, or pinned.
bool FakeGpu::Known(const void* memory, size_t bytes) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  MutexLock lock(&mutex_);
  for (const auto* known : {&memory_, &registered_}) {
    const auto next = known->upper_bound(begin);
    if (next == known->begin()) continue;
    const auto [first, size] = *std::prev(next);
    if (begin + bytes <= first + size) return true;
  }
  return false;
}

absl::StatusOr<void*> FakeGpu::AllocateDevice(size_t bytes) {
  return Allocate("AllocateDevice", bytes);
}

void FakeGpu::ReleaseDevice(void* memory) { Release(memory); }

absl::StatusOr<void*> FakeGpu::AllocatePinned(size_t bytes) {
  return Allocate("AllocatePinned", bytes);
}

void FakeGpu::ReleasePinned(void* memory) { Release(memory); }

absl::Status FakeGpu::Copy(void* to, const void* from, size_t bytes, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("Copy"));
  if (!Known(to, bytes) || !Known(from, bytes)) ++unpinned_copies_;
  Enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return absl::OkStatus();
}

absl::Status FakeGpu::RunOnHost(std::function<void()> call, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("RunOnHost"));
  Enqueue(stream, std::move(call));
  return absl::OkStatus();
}

absl::Status FakeGpu::ScaleTwice(float* x, size_t n, float a, float b, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("ScaleTwice"));
  Enqueue(stream, [=] { gradsync::ScaleTwice(x, n, a, b); });
  return absl::OkStatus();
}

absl::Status FakeGpu::SgdStep(const SgdCoefficients& c, float* param, const float* grad,
                              float* momentum_buffer, size_t n, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("SgdStep"));
  Enqueue(stream, [=] { gradsync::SgdStep(c, param, grad, momentum_buffer, n); });
  return absl::OkStatus();
}

absl::Status FakeGpu::AdamStep(const AdamCoefficients& c, float* param, const float* grad,
                               float* exp_avg, float* exp_avg_sq, size_t n, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("AdamStep"));
  Enqueue(stream, [=] { gradsync::AdamStep(c, param, grad, exp_avg, exp_avg_sq, n); });
  return absl::OkStatus();
}

absl::Status FakeGpu::ScaleBy(float* x, size_t n, const float* factor, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("ScaleBy"));
  Enqueue(stream, [=] { gradsync::Scale(x, n, *factor); });
  return absl::OkStatus();
}

absl::Status FakeGpu::SumOfSquares(const float* x, size_t n, double* sum, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("SumOfSquares"));
  Enqueue(stream, [=] { *sum = gradsync::SumOfSquares(x, n); });
  return absl::OkStatus();
}

absl::Status FakeGpu::LookUpBytes(const ImageLayout& layout, const uint8_t* bytes,
                                  const void* table, void* values, GpuStream stream) {
  GS_RETURN_IF_ERROR(Call("LookUpBytes"));
  Enqueue(stream, [=] {
    const size_t size = layout.element_bytes;
    for (size_t image = 0; image < layout.images; ++image) {
      for (size_t channel = 0; channel < layout.channels; ++channel) {
        for (size_t pixel = 0; pixel < layout.pixels; ++pixel) {
          const size_t entry = 256 * channel + bytes[layout.ByteIndex(image, channel, pixel)];
          std::memcpy(static_cast<char*>(values) + size * layout.ValueIndex(image, channel, pixel),
                      static_cast<const char*>(table) + size * entry, size);
        }
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace gradsync
