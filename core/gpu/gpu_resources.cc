#include "core/gpu/gpu_resources.h"

#include "core/base/status_macros.h"

namespace gradsync {

absl::StatusOr<std::shared_ptr<GpuMemory>> GpuMemory::OnDevice(std::shared_ptr<GpuApi> gpu,
                                                               size_t bytes) {
  GS_ASSIGN_OR_RETURN(void* const data, gpu->AllocateDevice(bytes));
  return std::shared_ptr<GpuMemory>(new GpuMemory(std::move(gpu), data, bytes, /*pinned=*/false));
}

absl::StatusOr<std::shared_ptr<GpuMemory>> GpuMemory::Pinned(std::shared_ptr<GpuApi> gpu,
                                                             size_t bytes) {
  GS_ASSIGN_OR_RETURN(void* const data, gpu->AllocatePinned(bytes));
  return std::shared_ptr<GpuMemory>(new GpuMemory(std::move(gpu), data, bytes, /*pinned=*/true));
}

GpuMemory::~GpuMemory() {
  if (pinned_) {
    // A device that met an error runs nothing any more.
    gpu_->SynchronizeDevice().IgnoreError();
    gpu_->ReleasePinned(data_);
  } else {
    gpu_->ReleaseDevice(data_);
  }
}

absl::StatusOr<RegisteredMemory> RegisteredMemory::Register(std::shared_ptr<GpuApi> gpu,
                                                            void* memory, size_t bytes) {
  GS_RETURN_IF_ERROR(gpu->RegisterHost(memory, bytes));
  RegisteredMemory registered;
  registered.gpu_ = std::move(gpu);
  registered.memory_ = memory;
  return registered;
}

RegisteredMemory& RegisteredMemory::operator=(RegisteredMemory&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(memory_, other.memory_);
  return *this;
}

RegisteredMemory::~RegisteredMemory() {
  if (memory_ != nullptr) gpu_->UnregisterHost(memory_);
}

absl::StatusOr<ScopedStream> ScopedStream::Create(std::shared_ptr<GpuApi> gpu) {
  ScopedStream scoped;
  GS_ASSIGN_OR_RETURN(scoped.stream_, gpu->CreateStream());
  scoped.gpu_ = std::move(gpu);
  return scoped;
}

ScopedStream& ScopedStream::operator=(ScopedStream&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(stream_, other.stream_);
  return *this;
}

ScopedStream::~ScopedStream() {
  if (stream_ != nullptr) gpu_->DestroyStream(stream_);
}

absl::StatusOr<ScopedEvent> ScopedEvent::Create(std::shared_ptr<GpuApi> gpu) {
  ScopedEvent scoped;
  GS_ASSIGN_OR_RETURN(scoped.event_, gpu->CreateEvent());
  scoped.gpu_ = std::move(gpu);
  return scoped;
}

ScopedEvent& ScopedEvent::operator=(ScopedEvent&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(event_, other.event_);
  return *this;
}

ScopedEvent::~ScopedEvent() {
  if (event_ != nullptr) gpu_->DestroyEvent(event_);
}

absl::StatusOr<ScopedGraph> ScopedGraph::Capture(std::shared_ptr<GpuApi> gpu,
                                                 const std::function<absl::Status()>& queue) {
  ScopedGraph scoped;
  GS_ASSIGN_OR_RETURN(scoped.graph_, gpu->Capture(queue));
  scoped.gpu_ = std::move(gpu);
  return scoped;
}

ScopedGraph& ScopedGraph::operator=(ScopedGraph&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(graph_, other.graph_);
  return *this;
}

ScopedGraph::~ScopedGraph() {
  if (graph_ != nullptr) gpu_->DestroyGraph(graph_);
}

}  // namespace gradsync
