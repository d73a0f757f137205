#include "allreduce/ipc_flags.h"

#include <unistd.h>

#include <utility>

#include "base/status_macros.h"
#include "links/window_signals.h"

namespace gradsync {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kFarBeyond = uint32_t{1} << 30;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

size_t IpcFlags::WordsOffset() { return RoundUp(sizeof(WindowControl), kLine); }

// Whole pages: less cannot be registered.
size_t IpcFlags::WindowBytes() {
  return RoundUp(WordsOffset() + sizeof(Words), static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

IpcFlags::IpcFlags(std::shared_ptr<GpuApi> gpu, std::vector<std::shared_ptr<Window>> windows,
                   int self)
    : gpu_(std::move(gpu)), windows_(std::move(windows)), self_(self) {}

absl::Status IpcFlags::Register() {
  for (const std::shared_ptr<Window>& window : windows_) {
    GS_ASSIGN_OR_RETURN(RegisteredMemory registered,
                        RegisteredMemory::Register(gpu_, window->data(), window->size()));
    registered_.push_back(std::move(registered));
    GS_ASSIGN_OR_RETURN(uint32_t* const start, gpu_->FlagOnDevice(window->data()));
    for (size_t counter = 0; counter < kCounters; ++counter) {
      on_device_.push_back(start + (WordsOffset() + counter * sizeof(Line)) / sizeof(uint32_t));
    }
  }
  return absl::OkStatus();
}

IpcFlags::Words& IpcFlags::In(const Window& window) {
  return *reinterpret_cast<Words*>(window.data() + WordsOffset());
}

void IpcFlags::SetGone(const Window& own) {
  In(own).halted.store(1);
  In(own).parted.store(1);
}

absl::Status IpcFlags::Write(Counter counter, uint32_t value, GpuStream stream) {
  return gpu_->WriteFlag(on_device_[self_ * kCounters + counter], value, stream);
}

absl::Status IpcFlags::Wait(int rank, Counter counter, uint32_t value, GpuStream stream) {
  return gpu_->WaitFlag(on_device_[rank * kCounters + counter], value, stream);
}

uint32_t IpcFlags::Read(int rank, Counter counter) const {
  return at(rank).counters[counter].value.load();
}

bool IpcFlags::OthersHalted() const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != self_ && at(rank).halted.load() == 0) return false;
  }
  return true;
}

bool IpcFlags::OthersParted() const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank != self_ && at(rank).parted.load() == 0) return false;
  }
  return true;
}

void IpcFlags::Release(uint32_t launched) {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (rank == self_) continue;
    for (Line& line : at(rank).counters) line.value.store(launched + kFarBeyond);
  }
}

}  // namespace gradsync
