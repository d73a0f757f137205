#include "allreduce/ipc_flags.h"

#include <unistd.h>

#include <cstring>
#include <utility>

#include "core/base/status_macros.h"
#include "core/shared_memory/window_signals.h"

namespace gradsync {
namespace {

constexpr size_t kLine = 64;
constexpr uint32_t kFarBeyond = uint32_t{1} << 30;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

size_t IpcFlags::WordsOffset() { return RoundUp(sizeof(WindowControl), kLine); }

size_t IpcFlags::SquaresOffset() { return RoundUp(WordsOffset() + sizeof(Words), kLine); }

// Whole pages: less cannot be registered.
size_t IpcFlags::WindowBytes(size_t squares) {
  return RoundUp(SquaresOffset() + squares * sizeof(double),
                 static_cast<size_t>(sysconf(_SC_PAGESIZE)));
}

IpcFlags::IpcFlags(std::shared_ptr<GpuApi> gpu, std::vector<std::shared_ptr<Window>> windows,
                   int self)
    : gpu_(std::move(gpu)), windows_(std::move(windows)), self_(self) {}

absl::Status IpcFlags::Register() {
  for (const std::shared_ptr<Window>& window : windows_) {
    GS_ASSIGN_OR_RETURN(RegisteredMemory registered,
                        RegisteredMemory::Register(gpu_, window->data(), window->size()));
    registered_.push_back(std::move(registered));
    GS_ASSIGN_OR_RETURN(on_device_.emplace_back(), gpu_->FlagOnDevice(window->data()));
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

uint32_t* IpcFlags::OnDevice(int rank, const void* word) const {
  const size_t offset =
      static_cast<size_t>(static_cast<const char*>(word) - windows_[rank]->data());
  return on_device_[rank] + offset / sizeof(uint32_t);
}

absl::Status IpcFlags::WriteNote(uint32_t turn, const Note& note, GpuStream stream) {
  uint32_t words[kNoteWords];
  std::memcpy(words, note.data(), sizeof(words));
  for (size_t i = 0; i < kNoteWords; ++i) {
    uint32_t* const word = OnDevice(self_, &at(self_).notes[turn % 2][i]);
    GS_RETURN_IF_ERROR(gpu_->WriteFlag(word, words[i], stream));
  }
  return absl::OkStatus();
}

IpcFlags::Note IpcFlags::ReadNote(int rank, uint32_t turn) const {
  uint32_t words[kNoteWords];
  for (size_t i = 0; i < kNoteWords; ++i) words[i] = at(rank).notes[turn % 2][i].load();
  Note note;
  std::memcpy(note.data(), words, sizeof(words));
  return note;
}

double* IpcFlags::squares(int rank) const {
  return reinterpret_cast<double*>(windows_[rank]->data() + SquaresOffset());
}

double* IpcFlags::squares_on_device() const {
  return reinterpret_cast<double*>(OnDevice(self_, squares(self_)));
}

bool IpcFlags::AllReached(Counter counter, uint32_t value) const {
  for (int rank = 0; rank < ranks(); ++rank) {
    if (!Reached(rank, counter, value)) return false;
  }
  return true;
}

absl::Status IpcFlags::Write(Counter counter, uint32_t value, GpuStream stream) {
  return gpu_->WriteFlag(OnDevice(self_, &at(self_).counters[counter]), value, stream);
}

absl::Status IpcFlags::Wait(int rank, Counter counter, uint32_t value, GpuStream stream) {
  return gpu_->WaitFlag(OnDevice(rank, &at(rank).counters[counter]), value, stream);
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
