#ifndef GRADSYNC_ALLREDUCE_NCCL_COMMUNICATOR_H_
#define GRADSYNC_ALLREDUCE_NCCL_COMMUNICATOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "allreduce/nccl_api.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/gpu/gpu_api.h"

namespace gradsync {

struct NcclPolling {
  // How long what is in progress is asked for again and again before the first sleep. NCCL hands a
  // non-blocking collective to a thread that it makes for it, so every one is in progress for a
  // moment, and a sleep would cost a small exchange more than that. How long it is on a GPU has not
  // been measured yet.
  absl::Duration spin = absl::Microseconds(200);
  // The clock of spins and deadlines.
  std::function<MonotonicTime()> now = [] { return MonotonicTime::Now(); };
};

// One rank's end of an NCCL communicator, with NCCL's rules kept:
//   * Nothing blocks inside NCCL that could be asked about: initialisation and collectives are
//     non-blocking, and what is in progress is polled until its deadline by our own clock, at first
//     without sleeping. Until then nothing else is asked of NCCL.
//   * No two threads are inside NCCL for this communicator. Abort() and Close() come when no other
//     call is, and are the last.
//   * An abort that hangs takes nobody with it: it goes on on a thread of its own.
//
// Thread-safe, but collectives are for one thread, whose order must be that of all ranks. Calls
// that are under way or come later return CANCELLED after Interrupt() or Abort(). After an error
// other than that all that is left is Abort().
//
// Errors, each method: those of NcclStatus(), with NCCL's own words; DEADLINE_EXCEEDED when
// something is in progress for too long; FAILED_PRECONDITION before Init().
class NcclCommunicator {
 public:
  // `rank` of `world_size`. Calls nothing yet.
  NcclCommunicator(std::shared_ptr<NcclApi> api, int rank, int world_size,
                   NcclPolling polling = NcclPolling());

  // As Abort(), for at most a second, if there is a communicator.
  ~NcclCommunicator();

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Collective, once: waits until all ranks have come with the same `id`.
  [[nodiscard]] absl::Status Init(const NcclUniqueId& id, Deadline deadline);

  // Lets NCCL use `memory` without copies, until Close() or Abort().
  [[nodiscard]] absl::Status Register(void* memory, size_t bytes);

  // Collectives, as NcclApi has them. They return when the work is queued on `stream`; `what` names
  // it in errors, e.g. "bucket 3 of step 12".
  [[nodiscard]] absl::Status AllReduce(absl::string_view what, float* data, size_t count,
                                       GpuStream stream, Deadline deadline);
  // In place: this rank's `count` floats are at data + rank * count.
  [[nodiscard]] absl::Status ReduceScatter(absl::string_view what, float* data, size_t count,
                                           GpuStream stream, Deadline deadline);
  [[nodiscard]] absl::Status AllGather(absl::string_view what, void* data, size_t bytes_per_rank,
                                       GpuStream stream, Deadline deadline);

  struct Range {
    void* data = nullptr;
    size_t bytes = 0;
  };
  // All ranges from `root`, issued together.
  [[nodiscard]] absl::Status Broadcast(absl::string_view what, absl::Span<const Range> ranges,
                                       int root, GpuStream stream, Deadline deadline);

  // One send or receive, as NcclApi has them.
  struct Message {
    static Message To(int peer, void* data, size_t bytes) { return {data, bytes, peer, true}; }
    static Message From(int peer, void* data, size_t bytes) { return {data, bytes, peer, false}; }

    void* data = nullptr;
    size_t bytes = 0;
    int peer = 0;
    bool is_send = false;
  };
  // All messages, issued together: between two ranks they meet in their order here.
  [[nodiscard]] absl::Status SendAndReceive(absl::string_view what,
                                            absl::Span<const Message> messages, GpuStream stream,
                                            Deadline deadline);

  // What NCCL says of the communicator: OK also while something is in progress, before Init() and
  // after the end. Returns OK at once when another thread is inside NCCL.
  [[nodiscard]] absl::Status CheckAsync();

  // How often a call slept between two looks at what is in progress.
  int64_t sleeps() const;

  // Whoever waits here or comes later gets CANCELLED. Never waits.
  void Interrupt();

  // Collective: gives back registrations, waits until all ranks have come, and destroys. The work
  // of all collectives must be done.
  [[nodiscard]] absl::Status Close(Deadline deadline);

  // Interrupts, waits for calls under way to return, aborts, and then runs `afterwards`, on another
  // thread: it waits for the stream to be idle, as an abort does not, and then frees what kernels
  // used. Returns when all that is done, or after `bound` with DEADLINE_EXCEEDED while it goes on.
  // Calls after the first, and after Close(), return OK at once and run nothing.
  [[nodiscard]] absl::Status Abort(absl::Duration bound,
                                   std::function<void()> afterwards = nullptr);

 private:
  struct State;

  absl::Status Run(absl::string_view what, Deadline deadline,
                   absl::FunctionRef<NcclResult(NcclApi&, NcclComm)> call);
  absl::Status End(absl::Duration bound, absl::string_view name,
                   NcclResult (NcclApi::*end)(NcclComm), std::function<void()> afterwards);
  absl::Status Describe(NcclResult result, absl::string_view what);

  const int rank_;
  const int world_size_;
  const NcclPolling polling_;
  const std::shared_ptr<State> state_;  // a thread that hangs in Abort() keeps it
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_COMMUNICATOR_H_
