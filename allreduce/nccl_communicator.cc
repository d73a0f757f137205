#include "allreduce/nccl_communicator.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"

namespace gradsync {
namespace {

// After the spin, what is in progress is asked for ever more rarely.
constexpr absl::Duration kFirstPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(2);

constexpr absl::Duration kLastAbort = absl::Seconds(1);

// Issues `call` of each item in one group.
template <typename Item, typename Call>
NcclResult InGroup(NcclApi& api, absl::Span<const Item> items, const Call& call) {
  NcclResult result = api.GroupStart();
  if (result != NcclResult::kSuccess) return result;
  for (const Item& item : items) {
    result = call(item);
    if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) break;
  }
  const NcclResult end = api.GroupEnd();  // also after an error: it ends the thread's group
  const bool issued = result == NcclResult::kSuccess || result == NcclResult::kInProgress;
  return issued ? end : result;
}

}  // namespace

struct NcclCommunicator::State {
  explicit State(std::shared_ptr<NcclApi> api) : api(std::move(api)) {}

  const std::shared_ptr<NcclApi> api;

  Mutex mutex;
  CondVar changed;
  bool interrupted ABSL_GUARDED_BY(mutex) = false;
  bool inside ABSL_GUARDED_BY(mutex) = false;  // a thread is in NCCL
  bool ended ABSL_GUARDED_BY(mutex) = false;   // Close() or Abort() has taken `comm`
  NcclComm comm ABSL_GUARDED_BY(mutex) = nullptr;
  std::vector<NcclRegistration> registrations ABSL_GUARDED_BY(mutex);
  int64_t sleeps ABSL_GUARDED_BY(mutex) = 0;

  // Waits for its turn and takes it. False: interrupted.
  bool Enter() {
    MutexLock lock(&mutex);
    while (inside && !interrupted) changed.Wait(&mutex);
    if (interrupted) return false;
    return inside = true;
  }
  void Leave() {
    MutexLock lock(&mutex);
    inside = false;
    changed.SignalAll();
  }
  // Less where interrupted.
  void Sleep(absl::Duration duration) {
    MutexLock lock(&mutex);
    ++sleeps;
    if (!interrupted) changed.WaitWithDeadline(&mutex, Deadline::In(duration));
  }
};

NcclCommunicator::NcclCommunicator(std::shared_ptr<NcclApi> api, int rank, int world_size,
                                   NcclPolling polling)
    : rank_(rank),
      world_size_(world_size),
      polling_(std::move(polling)),
      state_(std::make_shared<State>(std::move(api))) {}

NcclCommunicator::~NcclCommunicator() { Abort(kLastAbort).IgnoreError(); }

absl::Status NcclCommunicator::Describe(NcclResult result, absl::string_view what) {
  if (result == NcclResult::kSuccess) return absl::OkStatus();
  NcclComm comm = nullptr;
  {
    MutexLock lock(&state_->mutex);
    comm = state_->comm;
  }
  return NcclStatus(result, absl::StrCat("NCCL at rank ", rank_, ", ", what),
                    state_->api->LastError(comm));
}

// Between the calls that it makes others may ask for the state, but nothing else: those who issue
// work are one thread, and Abort() interrupts.
absl::Status NcclCommunicator::Run(absl::string_view what, Deadline deadline,
                                   absl::FunctionRef<NcclResult(NcclApi&, NcclComm)> call) {
  const auto cancelled = [&] {
    return absl::CancelledError(absl::StrCat("NCCL at rank ", rank_, ", ", what, ": interrupted"));
  };
  if (!state_->Enter()) return cancelled();
  NcclComm comm = nullptr;
  {
    MutexLock lock(&state_->mutex);
    comm = state_->comm;
  }
  if (comm == nullptr) {
    state_->Leave();
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL at rank ", rank_, ", ", what, ": expected Init() first"));
  }
  const MonotonicTime begin = polling_.now();
  absl::Duration pause = kFirstPause;
  NcclResult result = call(*state_->api, comm);
  while (true) {
    const absl::Status status =
        result == NcclResult::kInProgress ? absl::OkStatus() : Describe(result, what);
    state_->Leave();
    if (result != NcclResult::kInProgress) return status;
    const MonotonicTime now = polling_.now();
    if (now >= deadline.time()) {
      return absl::DeadlineExceededError(
          absl::StrCat("NCCL at rank ", rank_, ", ", what, ": still in progress at its deadline"));
    }
    if (now < begin + polling_.spin) {
      std::this_thread::yield();
    } else {
      state_->Sleep(std::min(pause, deadline.time() - now));
      pause = std::min(2 * pause, kLongestPause);
    }
    if (!state_->Enter()) return cancelled();
    const NcclResult asked = state_->api->AsyncError(comm, &result);
    if (asked != NcclResult::kSuccess) result = asked;
  }
}

absl::Status NcclCommunicator::Init(const NcclUniqueId& id, Deadline deadline) {
  const absl::string_view what = "ncclCommInitRankConfig";
  if (!state_->Enter()) {
    return absl::CancelledError(absl::StrCat("NCCL at rank ", rank_, ", ", what, ": interrupted"));
  }
  NcclComm comm = nullptr;
  const NcclResult result = state_->api->InitRank(world_size_, id, rank_, &comm);
  const absl::Status status =
      result == NcclResult::kInProgress ? absl::OkStatus() : Describe(result, what);
  {
    MutexLock lock(&state_->mutex);
    state_->comm = comm;
  }
  state_->Leave();
  GS_RETURN_IF_ERROR(status);
  return Run(what, deadline, [](NcclApi& api, NcclComm ready) {
    NcclResult state = NcclResult::kInternalError;
    const NcclResult asked = api.AsyncError(ready, &state);
    return asked == NcclResult::kSuccess ? state : asked;
  });
}

absl::Status NcclCommunicator::Register(void* memory, size_t bytes) {
  NcclRegistration registration = nullptr;
  GS_RETURN_IF_ERROR(Run("ncclCommRegister", Deadline::Never(), [&](NcclApi& api, NcclComm comm) {
    return api.Register(comm, memory, bytes, &registration);
  }));
  MutexLock lock(&state_->mutex);
  state_->registrations.push_back(registration);
  return absl::OkStatus();
}

absl::Status NcclCommunicator::AllReduce(absl::string_view what, float* data, size_t count,
                                         GpuStream stream, Deadline deadline) {
  return Run(absl::StrCat("all-reduce of ", what), deadline, [&](NcclApi& api, NcclComm comm) {
    return api.AllReduce(data, data, count, comm, stream);
  });
}

absl::Status NcclCommunicator::ReduceScatter(absl::string_view what, float* data, size_t count,
                                             GpuStream stream, Deadline deadline) {
  return Run(absl::StrCat("reduce-scatter of ", what), deadline, [&](NcclApi& api, NcclComm comm) {
    return api.ReduceScatter(data, data + static_cast<size_t>(rank_) * count, count, comm, stream);
  });
}

absl::Status NcclCommunicator::AllGather(absl::string_view what, void* data, size_t bytes_per_rank,
                                         GpuStream stream, Deadline deadline) {
  return Run(absl::StrCat("all-gather of ", what), deadline, [&](NcclApi& api, NcclComm comm) {
    const void* const own =
        static_cast<const char*>(data) + static_cast<size_t>(rank_) * bytes_per_rank;
    return api.AllGather(own, data, bytes_per_rank, comm, stream);
  });
}

absl::Status NcclCommunicator::Broadcast(absl::string_view what, absl::Span<const Range> ranges,
                                         int root, GpuStream stream, Deadline deadline) {
  return Run(absl::StrCat("broadcast of ", what), deadline, [&](NcclApi& api, NcclComm comm) {
    return InGroup(api, ranges, [&](const Range& range) {
      return api.Broadcast(range.data, range.bytes, root, comm, stream);
    });
  });
}

absl::Status NcclCommunicator::SendAndReceive(absl::string_view what,
                                              absl::Span<const Message> messages, GpuStream stream,
                                              Deadline deadline) {
  return Run(absl::StrCat("exchange of ", what), deadline, [&](NcclApi& api, NcclComm comm) {
    return InGroup(api, messages, [&](const Message& message) {
      return message.is_send ? api.Send(message.data, message.bytes, message.peer, comm, stream)
                             : api.Recv(message.data, message.bytes, message.peer, comm, stream);
    });
  });
}

absl::Status NcclCommunicator::CheckAsync() {
  NcclComm comm = nullptr;
  {
    MutexLock lock(&state_->mutex);
    comm = state_->comm;
    if (state_->interrupted || state_->inside || comm == nullptr) return absl::OkStatus();
    state_->inside = true;
  }
  NcclResult state = NcclResult::kInternalError;
  const NcclResult asked = state_->api->AsyncError(comm, &state);
  if (asked != NcclResult::kSuccess) state = asked;
  const absl::Status status = state == NcclResult::kInProgress
                                  ? absl::OkStatus()
                                  : Describe(state, "an asynchronous error");
  state_->Leave();
  return status;
}

int64_t NcclCommunicator::sleeps() const {
  MutexLock lock(&state_->mutex);
  return state_->sleeps;
}

void NcclCommunicator::Interrupt() {
  MutexLock lock(&state_->mutex);
  state_->interrupted = true;
  state_->changed.SignalAll();
}

absl::Status NcclCommunicator::Close(Deadline deadline) {
  std::vector<NcclRegistration> registrations;
  {
    MutexLock lock(&state_->mutex);
    registrations.swap(state_->registrations);
  }
  for (const NcclRegistration registration : registrations) {
    GS_RETURN_IF_ERROR(Run("ncclCommDeregister", deadline, [&](NcclApi& api, NcclComm comm) {
      return api.Deregister(comm, registration);
    }));
  }
  GS_RETURN_IF_ERROR(Run("ncclCommFinalize", deadline,
                         [](NcclApi& api, NcclComm comm) { return api.Finalize(comm); }));
  return End(deadline.remaining(), "ncclCommDestroy", &NcclApi::Destroy, nullptr);
}

absl::Status NcclCommunicator::Abort(absl::Duration bound, std::function<void()> afterwards) {
  Interrupt();
  return End(bound, "ncclCommAbort", &NcclApi::Abort, std::move(afterwards));
}

absl::Status NcclCommunicator::End(absl::Duration bound, absl::string_view name,
                                   NcclResult (NcclApi::*end)(NcclComm),
                                   std::function<void()> afterwards) {
  {
    MutexLock lock(&state_->mutex);
    if (state_->ended) return absl::OkStatus();
    state_->ended = true;
  }
  struct Outcome {
    Mutex mutex;
    bool returned ABSL_GUARDED_BY(mutex) = false;  // from NCCL
    absl::Status status ABSL_GUARDED_BY(mutex);
  };
  const auto outcome = std::make_shared<Outcome>();
  const std::string what = absl::StrCat("NCCL at rank ", rank_, ", ", name);
  const bool done =
      RunBounded(bound, [state = state_, outcome, afterwards = std::move(afterwards), what, end] {
        NcclComm comm = nullptr;
        {
          MutexLock lock(&state->mutex);
          while (state->inside) state->changed.Wait(&state->mutex);
          std::swap(comm, state->comm);
        }
        absl::Status status;
        if (comm != nullptr) {
          const NcclResult result = ((*state->api).*end)(comm);
          // There is nothing left to ask for how it goes on.
          if (result != NcclResult::kInProgress) status = NcclStatus(result, what, "");
        }
        {
          MutexLock lock(&outcome->mutex);
          outcome->returned = true;
          outcome->status = std::move(status);
        }
        if (afterwards != nullptr) afterwards();
      });
  MutexLock lock(&outcome->mutex);
  if (done) return outcome->status;
  return absl::DeadlineExceededError(absl::StrCat(
      what, outcome->returned ? ": has returned, but the stream is not idle" : ": has not returned",
      " after ", absl::FormatDuration(bound),
      " and is left to a thread of its own, with the memory that kernels may still use"));
}

}  // namespace gradsync
