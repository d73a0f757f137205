// An NcclApi without NCCL, for tests: ranks are threads of one process, each with a FakeGpu.

#ifndef GRADSYNC_ALLREDUCE_FAKE_NCCL_H_
#define GRADSYNC_ALLREDUCE_FAKE_NCCL_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "allreduce/nccl_api.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"

namespace gradsync {

namespace internal {
struct FakeNcclGroup;
struct FakeNcclComm;
struct FakeNcclOp;
}  // namespace internal

// Where the communicators of different ranks meet. Shared by the FakeNccl of all ranks.
// Thread-safe.
class FakeNcclNetwork {
 public:
  // Collectives that met another kind or size at the same place in the order, and sends that met
  // receives of another size, in words. As with NCCL, nobody comes out of them but by Abort().
  std::vector<std::string> mismatches() const;
  // Returns when there is one.
  void AwaitMismatch() const;

 private:
  friend class FakeNccl;

  // On a stream: waits until all ranks have come to the same collective and it is done, or until
  // the communicator is aborted.
  void Meet(internal::FakeNcclComm& comm, const internal::FakeNcclOp& op);
  // The same for sends and receives of one group: waits until all have met theirs.
  void Deliver(const std::shared_ptr<internal::FakeNcclComm>& comm,
               const std::vector<internal::FakeNcclOp>& ops);
  void Match(internal::FakeNcclGroup& group, int from, int to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  mutable CondVar changed_;
  int ids_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<NcclUniqueId, std::shared_ptr<internal::FakeNcclGroup>> groups_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> mismatches_ ABSL_GUARDED_BY(mutex_);
};

// One rank's NCCL. Collectives run on the FakeGpu's streams, where they wait for each other and
// then really add, in rank order: the k-th collective of each rank meets the k-th of the others.
// Sends and receives of a group are one piece of work there. A group has either them or
// collectives.
//
// It is strict where NCCL is undefined: calls that overlap, that come while another is in progress,
// or for a communicator that is gone do nothing, return kInvalidUsage and are kept in misuses().
//
// Thread-safe in that it notices threads that must not meet.
class FakeNccl : public NcclApi {
 public:
  FakeNccl(std::shared_ptr<FakeNcclNetwork> network, std::shared_ptr<FakeGpu> gpu);
  // Every communicator must have been destroyed or aborted.
  ~FakeNccl() override;

  // Failures to order.

  // The next call of the method of this name returns `result` and does nothing else.
  void FailNext(absl::string_view method, NcclResult result);
  // Communicators that are made from now on stay in progress until they are aborted.
  void NeverFinishInit();
  // From now on the communicators are in this state. What they have queued never ends.
  void Break(NcclResult state, absl::string_view why);
  // From now on a call that may be in progress is, until AsyncError() has been asked so often.
  void StayInProgress(int polls);
  // From now on calls of this method do not return before Release().
  void Hang(absl::string_view method);
  void Release();

  // What was seen.

  std::vector<std::string> misuses() const;
  // Calls of a method so far, misuses and failures included.
  int calls(absl::string_view method) const;
  // Returns when that many calls were made.
  void AwaitCalls(absl::string_view method, int count) const;
  int live_communicators() const;
  int live_registrations() const;

  int version() const override { return 22809; }
  std::string algorithm() const override { return "fake"; }
  NcclResult GetUniqueId(NcclUniqueId* id) override;
  NcclResult InitRank(int world_size, const NcclUniqueId& id, int rank, NcclComm* comm) override;
  NcclResult AsyncError(NcclComm comm, NcclResult* state) override;
  std::string LastError(NcclComm comm) override;
  NcclResult Finalize(NcclComm comm) override;
  NcclResult Destroy(NcclComm comm) override;
  NcclResult Abort(NcclComm comm) override;
  NcclResult GroupStart() override;
  NcclResult GroupEnd() override;
  NcclResult AllReduce(const float* in, float* out, size_t count, NcclComm comm,
                       GpuStream stream) override;
  NcclResult ReduceScatter(const float* in, float* out, size_t count, NcclComm comm,
                           GpuStream stream) override;
  NcclResult AllGather(const void* in, void* out, size_t bytes, NcclComm comm,
                       GpuStream stream) override;
  NcclResult Broadcast(void* data, size_t bytes, int root, NcclComm comm,
                       GpuStream stream) override;
  NcclResult Send(const void* data, size_t bytes, int peer, NcclComm comm,
                  GpuStream stream) override;
  NcclResult Recv(void* data, size_t bytes, int peer, NcclComm comm, GpuStream stream) override;
  NcclResult Register(NcclComm comm, void* memory, size_t bytes,
                      NcclRegistration* registration) override;
  NcclResult Deregister(NcclComm comm, NcclRegistration registration) override;
  NcclResult MemAlloc(size_t bytes, void** memory) override;
  NcclResult MemFree(void* memory) override;

 private:
  using Comm = internal::FakeNcclComm;
  using Op = internal::FakeNcclOp;
  class Visit;

  // What every call with a communicator begins with; kSuccess: go on with *found. Waits where
  // Hang() says so.
  NcclResult Enter(const Visit& visit, absl::string_view method, NcclComm comm, bool in_progress_ok,
                   std::shared_ptr<Comm>* found) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex_);
  // Counts the call and says what FailNext() ordered.
  NcclResult Begin(absl::string_view method) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex_);
  NcclResult Misuse(absl::string_view method, absl::string_view why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex_);
  NcclResult Collective(absl::string_view method, NcclComm comm, const Op& op);
  NcclResult Issue(const std::shared_ptr<Comm>& comm, std::vector<Op> ops)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex_);
  void Enqueue(const std::shared_ptr<Comm>& comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(network_->mutex_);

  const std::shared_ptr<FakeNcclNetwork> network_;  // all below is under its mutex
  const std::shared_ptr<FakeGpu> gpu_;
  std::atomic<int> visitors_{0};
  std::map<NcclComm, std::shared_ptr<Comm>> comms_ ABSL_GUARDED_BY(network_->mutex_);
  std::map<NcclRegistration, std::pair<NcclComm, void*>> registrations_
      ABSL_GUARDED_BY(network_->mutex_);
  uintptr_t next_registration_ ABSL_GUARDED_BY(network_->mutex_) = 0;
  absl::flat_hash_map<std::string, int> calls_ ABSL_GUARDED_BY(network_->mutex_);
  absl::flat_hash_map<std::string, NcclResult> failures_ ABSL_GUARDED_BY(network_->mutex_);
  std::set<std::string> hanging_ ABSL_GUARDED_BY(network_->mutex_);
  std::vector<std::string> misuses_ ABSL_GUARDED_BY(network_->mutex_);
  bool never_finish_init_ ABSL_GUARDED_BY(network_->mutex_) = false;
  int polls_ ABSL_GUARDED_BY(network_->mutex_) = 0;
  NcclResult broken_ ABSL_GUARDED_BY(network_->mutex_) = NcclResult::kSuccess;
  std::string why_ ABSL_GUARDED_BY(network_->mutex_);
  bool grouping_ ABSL_GUARDED_BY(network_->mutex_) = false;
  std::vector<Op> grouped_ ABSL_GUARDED_BY(network_->mutex_);
  std::shared_ptr<Comm> grouped_comm_ ABSL_GUARDED_BY(network_->mutex_);
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_FAKE_NCCL_H_
