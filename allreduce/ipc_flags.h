#ifndef GRADSYNC_ALLREDUCE_IPC_FLAGS_H_
#define GRADSYNC_ALLREDUCE_IPC_FLAGS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/shared_memory/window.h"

namespace gradsync {

// By which ranks of one host tell each other how far they are, in the order of their GPUs' streams:
// counters in windows (core/shared_memory/window.h) that all ranks have mapped and registered with
// CUDA. Streams write and wait for them, so no thread waits and no kernel spins; the host reads
// them, to see who has not come, and frees its streams by storing into them when the group has
// failed.
//
// Each rank writes its own. Counters count exchanges from 1 on, cyclically.
//
// Thread-safe. Nothing blocks.
class IpcFlags {
 public:
  enum Counter {
    kContributed,  // the rank's gradient is there
    kMeasured,     // for clipping: the rank's sums of squares of a step's means are there
    kFolded,       // what the rank owns is folded and stored; it reads others' memory no more
    kCounters,
  };

  // A step's options as bits (core/shared_memory/window_layout.h).
  using Note = std::array<uint64_t, 4>;

  // Of each rank's window, whose first bytes are a WindowControl, for WindowMesh. `squares`: of the
  // rank that has the most.
  static size_t WindowBytes(size_t squares);

  // `windows` by rank, of WindowBytes() each.
  IpcFlags(std::shared_ptr<GpuApi> gpu, std::vector<std::shared_ptr<Window>> windows, int self);

  // Before anything is queued: shows the windows to the GPU. Errors: those of GpuApi.
  absl::Status Register();

  int ranks() const { return static_cast<int>(windows_.size()); }
  int self() const { return self_; }

  // Queued: sets the own counter; lets the stream wait for a rank's.
  absl::Status Write(Counter counter, uint32_t value, GpuStream stream);
  absl::Status Wait(int rank, Counter counter, uint32_t value, GpuStream stream);

  // Queued: the own note of a step, for those who see the rank's next kContributed. `turn` counts
  // notes; one and the one before are kept.
  absl::Status WriteNote(uint32_t turn, const Note& note, GpuStream stream);
  Note ReadNote(int rank, uint32_t turn) const;

  // A rank's sums of squares, as the host and as the own device see them.
  double* squares(int rank) const;
  double* squares_on_device() const;

  // How far a rank is, as the host sees it now.
  uint32_t Read(int rank, Counter counter) const;
  bool Reached(int rank, Counter counter, uint32_t value) const {
    return static_cast<int32_t>(Read(rank, counter) - value) >= 0;
  }
  bool AllReached(Counter counter, uint32_t value) const;

  // How a failed group parts. A rank is *halted* when nothing that its streams still do can pass
  // for a success any more, and *parted* when it has closed other ranks' memory.
  void SetHalted() { at(self_).halted.store(1); }
  void SetParted() { at(self_).parted.store(1); }
  bool OthersHalted() const;
  bool OthersParted() const;

  // Both, for a rank that gave up before it had the others' windows: `own` is its own.
  static void SetGone(const Window& own);

  // Frees the own streams of waits for values up to 2^30 beyond `launched`. Others' streams may
  // still write older values over it, so it has to be repeated until the own streams are done.
  void Release(uint32_t launched);

 private:
  static constexpr size_t kNoteWords = sizeof(Note) / sizeof(uint32_t);

  struct alignas(64) Line {
    std::atomic<uint32_t> value;
  };
  // Follows the WindowControl. Zeroed memory is a valid one.
  struct Words {
    Line counters[kCounters];
    alignas(64) std::atomic<uint32_t> halted;
    std::atomic<uint32_t> parted;
    alignas(64) std::atomic<uint32_t> notes[2][kNoteWords];
  };

  static size_t WordsOffset();
  static size_t SquaresOffset();
  uint32_t* OnDevice(int rank, const void* word) const;
  static Words& In(const Window& window);
  Words& at(int rank) const { return In(*windows_[rank]); }

  const std::shared_ptr<GpuApi> gpu_;
  const std::vector<std::shared_ptr<Window>> windows_;
  const int self_;
  std::vector<RegisteredMemory> registered_;  // unregistered before the windows are unmapped
  std::vector<uint32_t*> on_device_;          // by rank: where its window begins
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_IPC_FLAGS_H_
