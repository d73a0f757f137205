#ifndef GRADSYNC_ALLREDUCE_RING_OWNER_H_
#define GRADSYNC_ALLREDUCE_RING_OWNER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "allreduce/collect_state.h"
#include "core/base/deadline.h"
#include "core/group/side_channel.h"
#include "core/links/frame_stream.h"
#include "core/optim/optimizer_state.h"
#include "core/optim/range_optimizer.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

// What a rank does with the chunks that it owns: completes their mean and, under kOwner, updates
// their parameters with its 1/n of the optimizer's state. Works in place in the buckets' memory,
// which must outlive it.
//
// Different chunks may be worked on at the same time; calls for one chunk must not overlap. Nothing
// blocks.
class RingOwner {
 public:
  // `plan` must outlive this object.
  RingOwner(const Plan& plan, int rank, UpdateSite update_site, std::vector<BucketMemory> memory);

  // The owned chunks that are not empty, in order of bucket and slot.
  const std::vector<ChunkId>& chunks() const { return chunks_; }

  // The chunk's gradient plus `last` (null if there is one rank) is the sum over all ranks:
  // multiplies it by 1/n, then by the inverse loss scale, in the pass that adds, and rounds it as
  // the plan's codec does (core/plan/codec.h). `last` has the size of the chunk.
  void CompleteMean(ChunkId id, const StepOptions& step, const Payload* last);

  // Notes the sum of squares of the chunk's mean.
  void MeasureSquares(ChunkId id);

  // The notes of all chunks, in the order of chunks().
  const std::vector<double>& squares() const { return squares_; }

  // Multiplies the chunk's mean, to clip it.
  void ScaleMean(ChunkId id, float scale);

  // Updates the chunk's parameters from its mean. Only under kOwner.
  void Update(ChunkId id, const StepOptions& step);

  // The same with the chunk's parameters somewhere else.
  void Update(ChunkId id, const StepOptions& step, float* param);

  // The same of chunks()[index], with its parameters and mean where the caller has them.
  void UpdateAt(size_t index, float* param, const float* mean, const StepOptions& step);

  // Collective: the state after `steps` steps, whole on every rank. Errors: those of
  // CollectState().
  absl::StatusOr<OptimizerState> Export(int64_t steps, SideChannel& side_channel,
                                        Deadline deadline) const;

  // Replaces the state of all owned chunks. `state` must have passed CheckState().
  void Import(const OptimizerState& state);

 private:
  ElementRange range(ChunkId id) const { return plan_.buckets()[id.bucket].layout.range(id.slot); }
  StateBytes ExportBucket(int bucket) const;
  size_t IndexOf(ChunkId id) const {
    return static_cast<size_t>(first_[id.bucket] + id.slot / plan_.world_size());
  }

  const Plan& plan_;
  const std::vector<BucketMemory> memory_;
  std::vector<ChunkId> chunks_;
  // By bucket: the index in chunks_ of its chunk of stripe 0; one less than that of stripe 1's where
  // the first stripe begins behind it (StripeLayout::lead()), so that there is none.
  std::vector<int64_t> first_;
  std::vector<RangeOptimizer> optimizers_;  // by chunk; empty under kWorker
  std::vector<double> squares_;             // by chunk
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_OWNER_H_
