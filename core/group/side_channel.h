// What is not gradients: batch-norm buffers, losses, sample counts, fingerprints, optimizer state.

#ifndef GRADSYNC_CORE_GROUP_SIDE_CHANNEL_H_
#define GRADSYNC_CORE_GROUP_SIDE_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"
#include "core/group/worker_group.h"

namespace gradsync {

// How large the pieces of a value are. All ranks of a channel must have the same.
struct SidePieces {
  size_t least = size_t{4} << 10;
  size_t most = size_t{16} << 20;
  // Bytes that the store sends in one visit, to all ranks together, unless `least` needs more.
  size_t visit = size_t{256} << 20;

  // Of a piece when `givers` of `world_size` ranks have bytes left: each piece goes to every rank.
  size_t Bytes(int givers, int world_size) const;
};

// Collectives over the group's store: a star on rank 0, the same under every topology and not
// counted with the gradients. Each call goes to rank 0 and back, with n times everybody's bytes on
// the way back; use it once per evaluation, checkpoint or start, not for every bucket.
//
// Values may have any size, and each rank's may have another. A value travels in pieces, one in each
// visit to the store, so that neither the store's limit for a value nor rank 0's memory bounds it.
//
// Calls are numbered and match up by their order: every rank makes the same calls in the same
// order. Each method blocks until all ranks have come or `deadline`; where a value needs more than
// one visit, each further visit may take as long as the first. Channels of one group with different
// names never meet; two on one rank must not share a name.
//
// Calls must not overlap. After an error the ranks may be out of step, so every later call returns
// that error again. With one worker nothing is sent and the store, which may then be null, is not
// used.
//
// Errors, each method: DEADLINE_EXCEEDED naming the ranks that did not come; FAILED_PRECONDITION
// when ranks make different calls, naming both; ABORTED, at once, when a rank has failed
// (core/group/group_error.h), naming it and why; UNAVAILABLE when the store is lost; DATA_LOSS when
// a rank's value is not as long as that rank said.
class SideChannel {
 public:
  SideChannel(WorkerGroup group, absl::string_view name, SidePieces pieces = SidePieces());
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
  // Everybody's bytes, by rank. `call` says which method this is: ranks must agree.
  absl::StatusOr<std::vector<std::string>> Collect(absl::string_view call, absl::string_view bytes,
                                                   Deadline deadline);
  absl::StatusOr<std::vector<std::string>> CollectInPieces(absl::string_view call,
                                                           absl::string_view bytes,
                                                           Deadline deadline);
  // One visit to the store.
  absl::StatusOr<std::vector<std::string>> Visit(absl::string_view part, Deadline deadline);

  const WorkerGroup group_;
  const std::string name_;
  const SidePieces pieces_;
  int64_t visits_ = 0;
  absl::Status failed_;
  int64_t bytes_sent_ = 0;
  int64_t bytes_received_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_SIDE_CHANNEL_H_
