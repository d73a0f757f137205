#include "core/plan/sharding.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/ring_schedule.h"
#include "core/plan/stripes.h"

namespace gradsync {

absl::Status CheckZero(int zero, const JobSpec& spec) {
  const auto refuse = [zero](absl::string_view expected) {
    return FlagError("zero", expected, absl::StrCat(zero));
  };
  if (zero < 0 || zero > kMostZero) return refuse(absl::StrCat("0 to ", kMostZero));
  const BackendTrait* const trait = FindBackend(spec.topology, spec.link);
  if (zero >= 1 && trait != nullptr && !trait->updates_at_owner) {
    return refuse(
        absl::StrCat("0 with --link=", LinkName(spec.link), ", which has no reduce-scatter"));
  }
  if (zero >= 2 && !spec.consistency.bulk()) {
    return refuse(absl::StrCat("0 or 1 with --consistency=", ConsistencyName(spec.consistency)));
  }
  if (zero >= 2 && BetweenGpus(spec.link)) {
    return refuse(absl::StrCat("0 or 1 with --link=", LinkName(spec.link),
                               ", whose owners keep on GPUs what is theirs (or --link=grpc, "
                               "tcp or shm)"));
  }
  if (zero < 3) return absl::OkStatus();
  if (spec.topology == Topology::kLocal) {
    return refuse("0 to 2 with --topology=local, where nobody else is");
  }
  if (spec.codec.compresses()) return refuse("0 to 2 with --compression");
  return absl::OkStatus();
}

std::vector<int64_t> SlotElements(const Plan& plan, int slots) {
  const int buckets = static_cast<int>(plan.buckets().size());
  std::vector<int64_t> elements(slots == 0 ? buckets : std::min(slots, buckets), 0);
  for (int bucket = 0; bucket < buckets; ++bucket) {
    int64_t& slot = elements[SlotOf(bucket, slots)];
    slot = std::max(slot, plan.buckets()[bucket].numel);
  }
  return elements;
}

namespace {

// `sends(chunk, rank)`: whether the rank sends a chunk of that number on; `bytes(elements)`: how
// many that is.
void AddToNext(const Plan& plan, int bucket, const std::function<bool(int, int)>& sends,
               const std::function<int64_t(int64_t)>& bytes, std::vector<Flow>* flows) {
  const int n = plan.world_size();
  const StripeLayout& layout = plan.buckets()[bucket].layout;
  for (int rank = 0; rank < n; ++rank) {
    Flow flow = {rank, RingNext(rank, n), 0, 0};
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const int64_t elements = layout.range(slot).size();
      if (elements == 0 || !sends(layout.chunk_of(slot), rank)) continue;
      flow.bytes += bytes(elements);
      ++flow.messages;
    }
    if (flow.messages > 0) flows->push_back(flow);
  }
}

void Append(const std::vector<Flow>& some, std::vector<Flow>* flows) {
  flows->insert(flows->end(), some.begin(), some.end());
}

int64_t Elements(const std::vector<int64_t>& slots) {
  return std::accumulate(slots.begin(), slots.end(), int64_t{0});
}

MemoryUse BucketMemory(const Plan& plan) {
  MemoryUse use;
  use.parameters = 4 * Elements(SlotElements(plan, plan.slots().parameters));
  use.gradients = 4 * Elements(SlotElements(plan, plan.slots().gradients));
  return use;
}

int64_t StateBytes(const Plan& plan, int64_t elements) {
  return 4 * static_cast<int64_t>(SlotNames(plan.optimizer()).size()) * elements;
}

}  // namespace

std::vector<Flow> RingLaunchFlows(const Plan& plan) {
  std::vector<Flow> flows;
  const auto bytes = [&plan](int64_t elements) {
    return GradientForm(plan.codec(), elements).bytes();
  };
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    AddToNext(plan, bucket, &SendsReduce, bytes, &flows);
  }
  return flows;
}

std::vector<Flow> RingGatherFlows(const Plan& plan, int bucket) {
  std::vector<Flow> flows;
  const auto sends = [&plan](int chunk, int rank) {
    return SendsGather(chunk, rank, plan.world_size());
  };
  AddToNext(
      plan, bucket, sends, [](int64_t elements) { return 4 * elements; }, &flows);
  return flows;
}

std::vector<Flow> PsLaunchFlows(const Plan& plan, const ShardMap& shards) {
  std::vector<Flow> flows;
  for (const Flow& flow : PsStepFlows(plan, shards)) {
    if (flow.from < plan.world_size()) flows.push_back(flow);
  }
  return flows;
}

std::vector<Flow> PsGatherFlows(const Plan& plan, const ShardMap& shards, int bucket) {
  std::vector<Flow> of_servers(shards.servers());
  const StripeLayout& layout = plan.buckets()[bucket].layout;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (layout.range(slot).empty()) continue;
    Flow& flow = of_servers[shards.server({bucket, slot})];
    flow.bytes += 4 * layout.range(slot).size();
    ++flow.messages;
  }
  std::vector<Flow> flows;
  for (int server = 0; server < shards.servers(); ++server) {
    for (int rank = 0; rank < plan.world_size() && of_servers[server].messages > 0; ++rank) {
      Flow flow = of_servers[server];
      flow.from = plan.world_size() + server;
      flow.to = rank;
      flows.push_back(flow);
    }
  }
  return flows;
}

std::vector<Flow> RingShardedStepFlows(const Plan& plan, const std::vector<int>& gathers) {
  std::vector<Flow> flows = RingLaunchFlows(plan);
  for (int bucket : gathers) Append(RingGatherFlows(plan, bucket), &flows);
  return flows;
}

std::vector<Flow> PsShardedStepFlows(const Plan& plan, const ShardMap& shards,
                                     const std::vector<int>& gathers) {
  std::vector<Flow> flows = PsLaunchFlows(plan, shards);
  for (int bucket : gathers) Append(PsGatherFlows(plan, shards, bucket), &flows);
  return flows;
}

MemoryUse RingMemory(const Plan& plan, UpdateSite site, int rank) {
  MemoryUse use = BucketMemory(plan);
  int64_t owned = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    for (int slot = 0; slot < bucket.layout.slots(); ++slot) {
      const bool own = site == UpdateSite::kWorker || bucket.layout.chunk_of(slot) == rank;
      owned += own ? bucket.layout.range(slot).size() : 0;
    }
  }
  if (plan.slots().parameters > 0) use.shard = 4 * owned;
  use.state = StateBytes(plan, owned);
  return use;
}

MemoryUse PsWorkerMemory(const Plan& plan, UpdateSite site) {
  MemoryUse use = BucketMemory(plan);
  if (site == UpdateSite::kWorker) use.state = StateBytes(plan, plan.total_bytes() / 4);
  return use;
}

MemoryUse PsServerMemory(const Plan& plan, UpdateSite site, int64_t owned_bytes) {
  MemoryUse use;
  use.gradients = owned_bytes;
  if (site == UpdateSite::kWorker) {
    // Means are still sent while the next step's are added up.
    use.gradients *= 2;
    return use;
  }
  use.shard = owned_bytes;
  use.state = StateBytes(plan, owned_bytes / 4);
  return use;
}

}  // namespace gradsync
