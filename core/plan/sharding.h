// Owners that keep things for all (docs/use/sharding.md): how much, in which memory, and what that costs.

#ifndef GRADSYNC_CORE_PLAN_SHARDING_H_
#define GRADSYNC_CORE_PLAN_SHARDING_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "core/plan/wire_traffic.h"

namespace gradsync {

// --zero, how much owners keep for all. 1: the optimizer's state; 2: gradients too; 3: parameters too.
constexpr int kMostZero = 3;

// Slots of gradients from --zero=2 on: one bucket fills while the one before is exchanged.
constexpr int kZeroGradientSlots = 2;

// What a job has that runs by such slots, and updates there: 1 where owners merely update.
inline int ZeroOf(const BucketSlots& slots, UpdateSite update) {
  if (slots.parameters > 0) return 3;
  if (slots.gradients > 0) return 2;
  return update == UpdateSite::kOwner ? 1 : 0;
}

// Whether such a job can have it, whoever trains. Errors: INVALID_ARGUMENT naming --zero, what was
// expected and what came.
absl::Status CheckZero(int zero, const JobSpec& spec);

// Where the flat buffers of a plan's buckets lie, when some of them take turns (BucketSlots).

// The slot of a bucket, where there are `slots` (0: as many as buckets).
constexpr int SlotOf(int bucket, int slots) { return slots == 0 ? bucket : bucket % slots; }

// How many elements each slot has: as many as the largest bucket that uses it. No more slots than
// buckets.
std::vector<int64_t> SlotElements(const Plan& plan, int slots);

// What a job costs whose owners keep things for all (BucketSlots): bytes on the wire and in memory,
// to the byte.

// Where owners alone keep parameters, in the numbers of core/plan/wire_traffic.h: the launches of
// one step, which bring gradients to their owners and nothing back, and one gather of one bucket.
std::vector<Flow> RingLaunchFlows(const Plan& plan);
std::vector<Flow> RingGatherFlows(const Plan& plan, int bucket);
std::vector<Flow> PsLaunchFlows(const Plan& plan, const ShardMap& shards);
std::vector<Flow> PsGatherFlows(const Plan& plan, const ShardMap& shards, int bucket);

// A whole step: its launches, and the gathers of these buckets (GathersOfStep() of
// core/plan/step_order.h). A pair of processes may occur several times.
std::vector<Flow> RingShardedStepFlows(const Plan& plan, const std::vector<int>& gathers);
std::vector<Flow> PsShardedStepFlows(const Plan& plan, const ShardMap& shards,
                                     const std::vector<int>& gathers);

// What stays allocated between steps, but for what is of a few chunks' size. The arithmetic of the
// ZeRO paper, with two differences: gradients are not kept as shards, because an owner updates a
// chunk as soon as its mean is complete; and slots have the size of the largest bucket in each.
struct MemoryUse {
  int64_t parameters = 0;  // flat buffers of buckets
  int64_t gradients = 0;   // likewise; of a server: sums
  int64_t shard = 0;       // parameters that nobody else keeps, or a server's
  int64_t state = 0;       // of the optimizer

  int64_t total() const { return parameters + gradients + shard + state; }
};

// Of a rank of a ring. None has more than rank 0.
MemoryUse RingMemory(const Plan& plan, UpdateSite site, int rank);

// Of a worker, and of a server that owns so many bytes of gradients (ShardMap::bytes()), whose
// memory is their own (not --link=shm).
MemoryUse PsWorkerMemory(const Plan& plan, UpdateSite site);
MemoryUse PsServerMemory(const Plan& plan, UpdateSite site, int64_t owned_bytes);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_SHARDING_H_
