// Collective calls between the ranks of a group, over plain memory of the host.

#ifndef GRADSYNC_CORE_COLLECTIVES_GROUP_COLLECTIVES_H_
#define GRADSYNC_CORE_COLLECTIVES_GROUP_COLLECTIVES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/collectives/fold.h"
#include "core/collectives/transport.h"
#include "core/group/group_error.h"
#include "core/group/side_channel.h"
#include "core/group/sync_life.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/plan/job_spec.h"

namespace gradsync {

struct GroupCollectivesOptions {
  WorkerGroup group;
  // How messages move between ranks; null: through memory, for ranks that are all on one host. The
  // same kind on all ranks, as are those below.
  std::shared_ptr<StreamLink> link;
  // Of reductions over a link: kRing, where each rank adds to what the one before it sends, or kPs,
  // where the first `owners` ranks (0: all) each own some shares, which all send them and get back.
  // Ranks that share memory all own one.
  Topology topology = Topology::kRing;
  int owners = 0;

  // For tests and benchmarks, as the transports have them, the same on all ranks; 0: the default.
  size_t piece_bytes = 0;
  size_t small_bytes = 0;
};

// One rank's part. Contributions are folded in one order, whatever the topology, the link and the size:
// n ranks cut `count` elements into n shares of ceil(count / n) elements, rounded up to 16, the last
// of which may be shorter or empty. Share j is folded in the order of ranks j+1, j+2, ..., j+n (mod
// n), the order in which a ring passes it. (A GradientSync cuts its buckets otherwise, so with more
// than two ranks the bits of its means differ from these.)
//
// Calls block until their results are here and their inputs may change again, at most until the
// deadline. They are numbered: all ranks make the same calls in the same order, with the same sizes,
// types, operations and roots. All ranks take part in all of them, but for Send() and Recv(), which
// match up by their order between two ranks. One thread at a time, any thread; the destructor too.
// A rank alone has nobody to wait for.
//
// `input` and `output` may overlap only where this says so.
//
// Errors: INVALID_ARGUMENT for arguments that are wrong by themselves, before anybody is told, which
// changes nothing; FAILED_PRECONDITION, on all ranks, when two make different calls, naming both (but
// the root of a broadcast that is longer than the transport holds may wait until its deadline);
// DEADLINE_EXCEEDED naming the call and who did not come; UNAVAILABLE naming a rank that is lost;
// ABORTED when another rank failed first, naming it; DATA_LOSS for a message that does not fit;
// CANCELLED after Finish(). But for the first all are final, for the whole group: every later call
// returns the same, and what outputs hold has no meaning. A call that fails on one rank may have
// succeeded on another, whose next call fails.
class GroupCollectives {
 public:
  // Collective: connects. Errors: also INVALID_ARGUMENT for options out of range; without a link
  // those of ExchangeMeshAddresses() and of Window::Create(); with one, those of PeerSession.
  static absl::StatusOr<std::unique_ptr<GroupCollectives>> Open(
      const GroupCollectivesOptions& options, Deadline deadline);

  // Without Finish() the group has failed: others learn that this rank left.
  ~GroupCollectives();

  GroupCollectives(const GroupCollectives&) = delete;
  GroupCollectives& operator=(const GroupCollectives&) = delete;

  int rank() const { return options_.group.rank; }
  int world_size() const { return options_.group.world_size; }

  // Element by element, `op` of all ranks' data, on all ranks. Errors: also INVALID_ARGUMENT where
  // CheckFold() does not hold.
  absl::Status AllReduce(void* data, int64_t count, ElementKind kind, FoldOp op, Deadline deadline);

  // All ranks' data become those of rank `root`.
  absl::Status Broadcast(void* data, int64_t bytes, int root, Deadline deadline);

  // Each rank gives `bytes`; `output` has room for all ranks', in their order. `input` may be this
  // rank's place in it.
  absl::Status AllGather(const void* input, void* output, int64_t bytes, Deadline deadline);

  // Each rank gives n times `count` elements, and gets `op` of all ranks' elements from its own number
  // times `count` on. `output` may be that place in `input`. The share of rank j is what it gets.
  absl::Status ReduceScatter(const void* input, void* output, int64_t count, ElementKind kind,
                             FoldOp op, Deadline deadline);

  // Gives rank r input_bytes[r], and takes output_bytes[r] from it, one behind the other in the order
  // of ranks.
  absl::Status AllToAll(const void* input, absl::Span<const int64_t> input_bytes, void* output,
                        absl::Span<const int64_t> output_bytes, Deadline deadline);

  // Returns when `data` may change, which may be before the other rank receives.
  absl::Status Send(const void* data, int64_t bytes, int to, Deadline deadline);
  absl::Status Recv(void* data, int64_t bytes, int from, Deadline deadline);

  // Returns when all ranks have come.
  absl::Status Barrier(Deadline deadline);

  // Collective: leaves in good order. A second call is OK and does nothing.
  absl::Status Finish(Deadline deadline);

 private:
  struct Shares;

  // Of some rank, in a call's memory.
  struct Range {
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  explicit GroupCollectives(const GroupCollectivesOptions& options);

  int n() const { return options_.group.world_size; }
  int self() const { return options_.group.rank; }
  bool alone() const { return n() == 1; }
  int64_t piece_bytes() const { return static_cast<int64_t>(transport_->piece_bytes()); }
  int owners() const;

  absl::Status Connect(Deadline deadline);
  absl::Status CheckUsable() const;
  absl::Status CheckRank(absl::string_view what, int rank) const;
  absl::Status CheckOther(absl::string_view what, int rank) const;
  absl::Status Run(const CollectiveCall& call, Deadline deadline,
                   absl::FunctionRef<absl::Status()> algorithm);
  absl::Status Failed(absl::Status own);
  void OnFailure(absl::Status status);

  absl::Status Greet();
  absl::Status AwaitGreetings();
  absl::Status Check(int from, const CollectiveCall& theirs) const;
  absl::Status Differ(int other, absl::string_view theirs, absl::string_view mine) const;
  absl::Status WrongSize(int from, const CallMessage& message, int64_t bytes) const;
  absl::StatusOr<const CallMessage*> Next(int from, int64_t bytes);
  absl::Status TakeNext(int from, char* to, int64_t bytes);
  absl::Status TakeAll(int64_t bytes);
  void ReleaseAll();
  absl::Status SendTo(int to, const char* from, int64_t bytes);

  // `in` has the elements of all shares. `out`, which may be `in`, gets all sums, with `gather`, or
  // those of this rank's share.
  absl::Status Reduce(const char* in, char* out, const Shares& shares, bool gather);
  absl::Status ReduceAtOnce(char* data, const Shares& shares);
  absl::Status ReduceByOwners(const char* in, char* out, const Shares& shares, bool gather);
  absl::Status FoldOwnShare(const char* in, char* out, const Shares& shares, int share,
                            int64_t round, bool gather);
  absl::Status ReduceInRing(const char* in, char* out, const Shares& shares, bool gather);
  absl::Status Exchange(const char* in, const std::vector<Range>& gives, char* out,
                        const std::vector<Range>& takes);
  absl::Span<const FoldInput> InputsOf(int share, absl::Span<const char> own, int64_t offset);

  const GroupCollectivesOptions options_;
  SideChannel channel_;  // to connect
  SyncLife life_;
  std::unique_ptr<CallTransport> transport_;  // null: alone

  // Of the thread that calls.
  CollectiveCall call_;          // the collective under way, or the last
  std::vector<bool> greeted_;    // by rank: something of this call has come
  std::vector<int64_t> counts_;  // by rank: what its messages say as CollectiveCall::count
  std::vector<const CallMessage*> messages_;  // by rank
  absl::Span<const char> own_;                // this rank's contribution
  std::vector<FoldInput> inputs_;             // by place in the fold
  std::vector<uint64_t> sends_, receives_;    // by rank

  std::atomic<bool> has_failed_{false};
  std::atomic<bool> left_{false};
  mutable Mutex mutex_;
  CondVar changed_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<GroupError> group_error_;  // last: its threads use all of the above; null: alone
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_COLLECTIVES_GROUP_COLLECTIVES_H_
