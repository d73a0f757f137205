// What DdpEngine is told, and how it is to have what it trains: whole, as a stage of a
// model, in units that are gathered one by one, or with copies in a narrower type.

#ifndef GRADSYNC_GRADSYNC_DDP_DDP_OPTIONS_H_
#define GRADSYNC_GRADSYNC_DDP_DDP_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "c10/core/ScalarType.h"
#include "core/base/activity.h"
#include "core/base/trace_recorder.h"
#include "core/group/side_channel.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/plan.h"

namespace gradsync {

// What a rank has of a module that is cut into stages, each on ranks of its own.
struct DdpPart {
  // Names of the trainable parameters, in the module's order.
  std::vector<std::string> parameters;
  SideChannel* all_ranks = nullptr;  // of all stages and their replicas
};

// Weights that a module computes with in a narrower type (weight_copies.h).
struct DdpCopies {
  c10::ScalarType type = c10::ScalarType::BFloat16;
  std::vector<std::string> names;  // of trainable parameters
};

struct DdpEngineOptions {
  // The optimizer and its parameter groups, the same on all ranks.
  OptimizerSpec optimizer;

  // Group of a parameter, an index into optimizer.groups; null puts all into group 0. For example,
  // no weight decay for vectors: [](const TensorSpec& t) { return t.sizes.size() < 2 ? 1 : 0; }.
  std::function<int(const TensorSpec&)> group_of;

  // Buckets and chunks. The number of workers is the side channel's. With slots of gradients
  // (BucketSlots) the owners must update; a step then may wait in backward for the bucket that had
  // the memory before, and neither clips nor adds up micro-batches.
  PlanOptions plan;

  // Plan::chunk_bytes() of the job that this one continues, for its bits: taken where plan.chunk_bytes
  // is 0. None: as the ranks' hosts have it (plan_agreement.h). The same on all ranks.
  absl::optional<int64_t> earlier_chunk_bytes;

  // Not empty: owners alone keep parameters, and the plan gets slots for them (BucketSlots). Each
  // unit is the names of trainable parameters that are computed with in one go, a block, in the
  // order of forward; every parameter is in one. They hold values when GatherUnit() got them, and
  // must not be used otherwise: in backward the units come once more, in reverse, so the graph is
  // to be cut between them. All ranks need the same units.
  //
  // Where buckets are on a GPU the module may be on the host, and so need not fit on the GPU:
  // Create() brings its parameters to the owners by way of the buckets, and the caller moves the
  // rest of it afterwards.
  std::vector<std::vector<std::string>> units;

  // Runs one forward and backward of the module on any batch, e.g. of zeros; called once, on rank
  // 0, to see the order in which gradients become ready (see ready_order.h). Null assumes the
  // reverse of the order of registration.
  std::function<void()> forward_backward;

  // Called in backward for each parameter, an index into plan().tensors(), whose gradient of the
  // step is complete, before its bucket leaves: for those who measure, or delay, a step. Must not
  // throw. Null: nobody does.
  std::function<void(int parameter)> on_gradient;

  // A parameter that gets no gradient in a step counts as zero, and FinishStep() launches the buckets
  // that waited for it. Otherwise it is an error that names it.
  bool find_unused_parameters = false;

  // Change a bucket's gradients in place: this rank's, in backward, before they leave, one call at a
  // time; and the mean, in FinishStep(), in order of buckets. The padding between tensors must stay
  // zero. Must not throw; an error is the step's. Null: nobody does. With a function for the mean only
  // where workers update.
  std::function<absl::Status(int bucket)> before_exchange;
  std::function<absl::Status(int bucket)> after_exchange;

  // False: nobody updates the parameters, and FinishStep() leaves the mean in .grad for an optimizer of
  // the caller's, whose groups and state are not this object's affair. Only where workers update.
  bool updates = true;

  // Not null: a step begins with the first gradient that comes outside of NoSync(), in backward, which
  // calls this; there is no BeginStep(), and FinishStep() is called when that backward ends. With
  // updates DdpEngine::SetNextSteps() says by which learning rate. Must not throw.
  std::function<void()> on_backward;

  // Copies rank 0's buffers (BatchNorm's running statistics) to all ranks at the begin of every
  // step, which costs a round trip. Otherwise they drift apart, harmlessly, until
  // BroadcastBuffers().
  bool broadcast_buffers_each_step = false;

  // Leaves parameters and the optimizer's state as they were after a step whose mean gradient is
  // not finite, for those who scale the loss; skipped() says so. All ranks see the same mean, so
  // all do the same. Every bucket's mean is waited for before the first update, as with clipping,
  // and then their norm on the host: the only wait for a GPU in a step. Only where workers update:
  // an owner updates a chunk before it could know of the others, so Create() refuses it with
  // INVALID_ARGUMENT.
  bool skip_nonfinite_steps = false;

  // Of a stage: the module is whole, of which this rank trains these parameters with the ranks of
  // the side channel, who have the same. The plan is then the whole module's, as if it were not
  // cut, and this rank's is a part of it (Plan::Part()): so sums have the bits of the uncut module's
  // under plain data parallelism. All other parameters lose their values, and their memory.
  absl::optional<DdpPart> part;

  // Parameters of which there are to be copies in a narrower type, with which alone the module then
  // computes its gradients: those that autocast would round in each forward. After Create() the
  // caller gives CopyOf() to the module. Not with units, which would have to be copied, too, whenever
  // they come: INVALID_ARGUMENT.
  absl::optional<DdpCopies> copies;

  // Told of waits for others in backward; may be null.
  Activity* activity = nullptr;

  // Of some steps' launches, waits and updates; may be null.
  std::shared_ptr<TraceRecorder> recorder;

  // Called when FinishStep() has waited long for a bucket, and again each time that this has doubled;
  // on its thread. Null: nobody is told.
  std::function<void(int64_t step, int bucket, absl::Duration waited)> on_stall;
  absl::Duration stall_after = absl::Seconds(5);

  // Longest wait for peers where no deadline is passed.
  absl::Duration timeout = absl::Seconds(60);
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_DDP_OPTIONS_H_
