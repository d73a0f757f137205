// Owners of what a GpuApi hands out.

#ifndef GRADSYNC_CORE_GPU_GPU_RESOURCES_H_
#define GRADSYNC_CORE_GPU_GPU_RESOURCES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"

namespace gradsync {

// Memory of the device, or pinned memory of the host. Keeps the GpuApi alive. The destructor waits
// for all that the device has queued, since none of it may use the memory any more.
class GpuMemory {
 public:
  static absl::StatusOr<std::shared_ptr<GpuMemory>> OnDevice(std::shared_ptr<GpuApi> gpu,
                                                             size_t bytes);
  static absl::StatusOr<std::shared_ptr<GpuMemory>> Pinned(std::shared_ptr<GpuApi> gpu,
                                                           size_t bytes);
  ~GpuMemory();
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  GpuMemory(std::shared_ptr<GpuApi> gpu, void* data, size_t bytes, bool pinned)
      : gpu_(std::move(gpu)), data_(data), bytes_(bytes), pinned_(pinned) {}

  const std::shared_ptr<GpuApi> gpu_;
  void* const data_;
  const size_t bytes_;
  const bool pinned_;
};

// Memory of somebody else's that is pinned as long as this exists. Movable.
class RegisteredMemory {
 public:
  // As GpuApi::RegisterHost().
  static absl::StatusOr<RegisteredMemory> Register(std::shared_ptr<GpuApi> gpu, void* memory,
                                                   size_t bytes);
  RegisteredMemory() = default;
  RegisteredMemory(RegisteredMemory&& other) noexcept { *this = std::move(other); }
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  ~RegisteredMemory();

 private:
  std::shared_ptr<GpuApi> gpu_;
  void* memory_ = nullptr;
};

// A stream of one's own. Movable. The destructor does not wait for queued work: whoever owns what
// that uses waits before.
class ScopedStream {
 public:
  static absl::StatusOr<ScopedStream> Create(std::shared_ptr<GpuApi> gpu);
  ScopedStream() = default;
  ScopedStream(ScopedStream&& other) noexcept { *this = std::move(other); }
  ScopedStream& operator=(ScopedStream&& other) noexcept;
  ~ScopedStream();

  GpuStream get() const { return stream_; }

 private:
  std::shared_ptr<GpuApi> gpu_;
  GpuStream stream_ = nullptr;
};

class ScopedEvent {
 public:
  static absl::StatusOr<ScopedEvent> Create(std::shared_ptr<GpuApi> gpu);
  ScopedEvent() = default;
  ScopedEvent(ScopedEvent&& other) noexcept { *this = std::move(other); }
  ScopedEvent& operator=(ScopedEvent&& other) noexcept;
  ~ScopedEvent();

  GpuEvent get() const { return event_; }

 private:
  std::shared_ptr<GpuApi> gpu_;
  GpuEvent event_ = nullptr;
};

// A captured graph. Movable; the destructor expects that its launches are done.
class ScopedGraph {
 public:
  // As GpuApi::Capture().
  static absl::StatusOr<ScopedGraph> Capture(std::shared_ptr<GpuApi> gpu,
                                             const std::function<absl::Status()>& queue);
  ScopedGraph() = default;
  ScopedGraph(ScopedGraph&& other) noexcept { *this = std::move(other); }
  ScopedGraph& operator=(ScopedGraph&& other) noexcept;
  ~ScopedGraph();

  GpuGraph get() const { return graph_; }

 private:
  std::shared_ptr<GpuApi> gpu_;
  GpuGraph graph_ = nullptr;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_GPU_RESOURCES_H_
