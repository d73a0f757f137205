// Messages between ranks of one host, through memory that all of them map.
//
// Each rank has a window of its own, into which it alone writes, but for the bell by which others
// wake it:
//
//   control words | counts of messages read, by lane and rank | notes, by lane and rank | slots
//
// A message lies in a slot of its sender's window, and a note for each receiver says which slot that
// is, how long the message, and of what call. Its number in the note, written last, is what the
// receiver waits for. The receiver reads the slot where it is, and counts the message as read in its
// own window; when all receivers have, the slot is free.

#ifndef GRADSYNC_CORE_COLLECTIVES_WINDOW_TRANSPORT_H_
#define GRADSYNC_CORE_COLLECTIVES_WINDOW_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/collectives/transport.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/shared_memory/window.h"
#include "core/shared_memory/window_mesh.h"
#include "core/shared_memory/window_signals.h"

namespace gradsync {

struct WindowTransportOptions {
  WorkerGroup group;  // of at least two ranks, all on one host
  // A rank is lost: the status names it. On a thread of the mesh.
  std::function<void(absl::Status)> on_error;
  // Most bytes of a message; 0: so many that the slots of a rank take about 2 MiB. Rounded up to a
  // cache line, the same on all ranks.
  size_t piece_bytes = 0;
  size_t small_bytes = 0;  // as CallTransport has them; 0: the default
  // Whether this host has fewer cores than the group has ranks; found out when not given.
  absl::optional<bool> shares_cores;
};

// As CallTransport. A rank that waits looks for some 50 us, giving its core away now and then, and then
// sleeps until it is rung. In a call that meets all others in time nothing allocates memory or calls
// the kernel.
class WindowTransport final : public CallTransport {
 public:
  explicit WindowTransport(WindowTransportOptions options);
  ~WindowTransport() override { Close(); }

  absl::Status Connect(SideChannel& channel, Deadline deadline) override;
  bool shares_memory() const override { return true; }
  size_t piece_bytes() const override { return piece_; }
  size_t small_bytes() const override { return small_; }
  int lead() const override { return 1; }
  void Begin(Deadline deadline) override { patience_.emplace(deadline); }
  absl::StatusOr<char*> Reserve(CallLane lane, size_t bytes) override;
  void Post(CallLane lane, int to, const CollectiveCall& call, size_t bytes) override;
  absl::Status Send(CallLane lane, int to, const CollectiveCall& call,
                    absl::Span<const char> bytes) override;
  absl::StatusOr<const CallMessage*> Receive(CallLane lane, int from) override;
  void Release(CallLane lane, int from) override;
  absl::Status Flush() override;
  void Fail(const absl::Status& status) override;
  void Settle() override {}
  absl::Status Finish(Deadline deadline) override;
  void Close() override;

 private:
  static constexpr int kNoSlot = -1;

  struct alignas(64) Count {
    std::atomic<uint64_t> read;
  };
  struct alignas(64) Note {
    std::atomic<uint64_t> number;  // of the message, from 1
    int32_t slot;
    uint64_t bytes;
    CollectiveCall call;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && sizeof(Note) == 64);

  // A message that was kept for later.
  struct Kept {
    CollectiveCall call;
    std::string bytes;
  };

  // What this rank knows of one lane.
  struct LaneState {
    int slots = 0;
    int notes = 0;                             // for each receiver
    size_t first_note = 0;                     // where they begin, in each window
    size_t first_slot = 0;                     // the same
    int next_slot = 0;                         // to be looked at
    int reserved = kNoSlot;                    // and not posted yet
    std::vector<uint64_t> sent;                // messages, by receiver
    std::vector<uint64_t> read;                // of those, as far as is known here
    std::vector<uint64_t> received;            // messages, by sender
    std::vector<std::vector<uint64_t>> until;  // by slot, by receiver: the message in it; 0: none
  };

  // Of one sender, valid until it is released.
  struct Arrived {
    absl::Span<const char> bytes;
    CallMessage message;
  };

  int n() const { return options_.group.world_size; }
  int self() const { return options_.group.rank; }
  Count& CountAt(int reader, CallLane lane, int sender) const;
  Note& NoteAt(int sender, CallLane lane, int reader, uint64_t number) const;
  char* SlotAt(int sender, CallLane lane, int slot) const;
  Note& NextNote(CallLane lane, int from) const;
  bool HasNext(CallLane lane, int from) const;
  absl::StatusOr<std::string> MakeWindow();
  bool IsFree(LaneState& state, CallLane lane, int slot);
  bool FindSlot(LaneState& state, CallLane lane);
  absl::Status Take(CallLane lane, int from, Arrived* arrived);
  void CountRead(CallLane lane, int from);
  absl::StatusOr<bool> KeepMail();
  void Ring();
  template <typename Condition>
  absl::Status Await(const Condition& condition, int from);
  absl::Status AwaitAsleep(absl::FunctionRef<bool()> condition, int from);
  std::string WaitedFor(int from) const;

  const WindowTransportOptions options_;
  const size_t piece_;
  const size_t small_;
  const bool shares_cores_;
  size_t window_bytes_ = 0;
  std::shared_ptr<Window> window_;
  std::vector<std::shared_ptr<Window>> windows_;  // by rank
  std::vector<char*> memory_;                     // of these

  // Of the thread that calls.
  LaneState lanes_[kLanes];
  std::vector<Arrived> arrived_[kLanes];  // by sender
  std::vector<std::deque<Kept>> kept_;    // mail, by sender
  absl::InlinedVector<bool, 16> to_ring_;
  bool rings_ = false;  // any of them
  absl::optional<PatientDeadline> patience_;

  // What a failure, on another thread, ends.
  Mutex mutex_;
  std::atomic<bool> has_failed_{false};
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WindowMesh> mesh_;        // written once by Connect(), under mutex_
  std::unique_ptr<WindowSignals> signals_;  // the same
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_COLLECTIVES_WINDOW_TRANSPORT_H_
