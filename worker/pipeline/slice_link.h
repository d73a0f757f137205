#ifndef GRADSYNC_WORKER_PIPELINE_SLICE_LINK_H_
#define GRADSYNC_WORKER_PIPELINE_SLICE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"

namespace gradsync {

// This rank's place among those that compute slices of the same layers, and the collectives that
// they meet in. What these do, worker/models/slices.h says of the methods of the same
// names: all slices call them in the same order, and what is added up is added in the order of
// slices, ((x0 + x1) + x2) + ..., whatever the link, so the bits are the same in every run and on
// all ranks.
//
// Not thread-safe. A failure is one of the whole job (core/group/group_error.h): whoever notices
// one first publishes it, and all ranks of all groups of the job report that one. After it
// everything returns it. Errors of the collectives: DEADLINE_EXCEEDED naming the rank that did not
// come; UNAVAILABLE naming one that is lost; INVALID_ARGUMENT for a tensor of other sizes or type;
// of another rank, ABORTED naming it.
//
// Destroying it without Finish() ends it at once, which the others notice.
class SliceLink {
 public:
  virtual ~SliceLink() = default;

  virtual int slice() const = 0;   // this rank's, from 0
  virtual int slices() const = 0;  // how many there are

  // Collective, once. `fingerprint`, of what the slices must agree on, must be the same on all.
  // Errors: DEADLINE_EXCEEDED or UNAVAILABLE naming a rank that is missing; FAILED_PRECONDITION for
  // another fingerprint; those of other ranks, as ABORTED.
  virtual absl::Status Connect(const std::string& fingerprint, Deadline deadline) = 0;

  virtual absl::StatusOr<at::Tensor> Sum(const at::Tensor& own, Deadline deadline) = 0;
  virtual absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own, Deadline deadline) = 0;
  virtual absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own,
                                                         Deadline deadline) = 0;

  // Ends in good order, after the last collective: waits until all slices do the same. Errors:
  // DEADLINE_EXCEEDED naming one that does not.
  virtual absl::Status Finish(Deadline deadline) = 0;

  // Bytes of tensors: sent to others and come from them, or where memory is shared, read by them
  // and of theirs.
  virtual int64_t bytes_sent() const = 0;
  virtual int64_t bytes_received() const = 0;
};

// A SliceLink with a stream between each two slices. With x bytes of a tensor and n slices each rank
// sends, and receives,
//
//   Sum      2 (n-1)/n x: the parts of others' sums, then its part of the sum, to all. (Two slices
//            send each other all of it, which is as much, and is one message instead of two.)
//   SumPart  (n-1)/n x, of a tensor that is n parts
//   Gather   (n-1) x
//
// but for elements that n does not divide. `group`: the slices (SubGroup() along
// MeshDimension::kTensor).
std::unique_ptr<SliceLink> NewStreamSliceLink(const WorkerGroup& group,
                                              std::shared_ptr<StreamLink> link);

// A SliceLink between slices of one host, which map each other's memory. Each puts its tensor, piece
// by piece, into a window (core/shared_memory/window.h), and when all have, each adds up what it needs:
// the same sums as over streams, to the bit. `group`: the slices (SubGroup() along
// MeshDimension::kTensor). Connect() also fails with FAILED_PRECONDITION for slices of other hosts.
std::unique_ptr<SliceLink> NewWindowSliceLink(const WorkerGroup& group);

// A rank's place among those that compute slices of one model. Points at what outlives it.
struct SlicePlace {
  SliceLink* link = nullptr;        // not connected yet
  SideChannel* replicas = nullptr;  // of the ranks that have the same slice of other replicas
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_SLICE_LINK_H_
