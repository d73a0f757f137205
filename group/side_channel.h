// Small things that are not gradients: batch-norm buffers, losses, sample counts, fingerprints.

#ifndef GRADSYNC_GROUP_SIDE_CHANNEL_H_
#define GRADSYNC_GROUP_SIDE_CHANNEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "group/worker_group.h"

namespace gradsync {

// Collectives of a few kilobytes over the group's store: a star on rank 0, the same under every
// topology and not counted with the gradients. Each call goes to rank 0 and back, with n times
// everybody's bytes on the way back; use it once per evaluation or start, not for every bucket.
//
// Calls are numbered and match up by their order: every rank makes the same calls in the same
// order. Each method blocks until all ranks have come or `deadline`. Channels of one group with
// different names never meet; two on one rank must not share a name.
//
// Calls must not overlap. After an error the ranks may be out of step, so every later call returns
// that error again. With one worker nothing is sent and the store, which may then be null, is not
// used.
//
// Errors, each method: DEADLINE_EXCEEDED naming the ranks that did not come; FAILED_PRECONDITION
// when ranks make different calls, naming both; ABORTED, at once, when a rank has failed
// (group/group_error.h), naming it and why; UNAVAILABLE when the store is lost.
class SideChannel {
 public:
  SideChannel(WorkerGroup group, absl::string_view name);
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;

  int rank() const { return group_.rank; }
  int world_size() const { return group_.world_size; }

  // What messages call a rank of this channel's group: "rank 3", by its number in the job.
  std::string Name(int rank) const { return group_.Name(rank); }

  // Everybody's bytes, by rank.
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes, Deadline deadline);

  // Rank 0's bytes. What other ranks pass is not sent.
  absl::StatusOr<std::string> Broadcast(absl::string_view bytes, Deadline deadline);

  // Element-wise sums over ranks, folded from rank 0 upwards, so all ranks get the same bits.
  // Errors: INVALID_ARGUMENT, on all ranks, when lengths differ.
  absl::StatusOr<std::vector<double>> SumDoubles(const std::vector<double>& values,
                                                 Deadline deadline);

  // Returns when all ranks have come.
  absl::Status Barrier(Deadline deadline);

  // Bytes of values that this rank sent to the store and got back, of calls that succeeded.
  int64_t bytes_sent() const { return bytes_sent_; }
  int64_t bytes_received() const { return bytes_received_; }

 private:
  // One round through the store. `call` says which method this is: ranks must agree.
  absl::StatusOr<std::vector<std::string>> Collect(absl::string_view call, absl::string_view bytes,
                                                   Deadline deadline);

  const WorkerGroup group_;
  const std::string name_;
  int64_t calls_ = 0;
  absl::Status failed_;
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_GROUP_SIDE_CHANNEL_H_
