// Ranks of a ring as threads, for tests.

#ifndef GRADSYNC_TESTS_RING_GROUP_H_
#define GRADSYNC_TESTS_RING_GROUP_H_

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "allreduce/ring_gradient_sync.h"
#include "links/in_memory_store.h"
#include "plan/plan.h"
#include "sync/gradient_sync.h"
#include "tests/reference.h"

namespace gradsync {

// The watchdog: nothing in these tests may take longer.
inline absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

class RingGroup {
 public:
  // `base` without its group.
  RingGroup(int world_size, RingOptions base)
      : world_size_(world_size), base_(std::move(base)), store_(NewInMemoryStore()) {}

  RingOptions options(int rank) const {
    RingOptions options = base_;
    options.group.rank = rank;
    options.group.world_size = world_size_;
    options.group.run_id = "ring";
    options.group.store = store_;
    options.group.address = "127.0.0.1";
    return options;
  }

  std::unique_ptr<GradientSync> Create(int rank) const {
    return *CreateRingGradientSync(options(rank));
  }

 private:
  const int world_size_;
  const RingOptions base_;
  const std::shared_ptr<KeyValueStore> store_;
};

inline void Write(const FlatValues& values, std::vector<GradBucket>& buckets,
                  at::Tensor GradBucket::*which) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::copy(values[b].begin(), values[b].end(), (buckets[b].*which).data_ptr<float>());
  }
}

inline FlatValues Read(const std::vector<GradBucket>& buckets, at::Tensor GradBucket::*which) {
  FlatValues values;
  for (const GradBucket& bucket : buckets) {
    const float* data = (bucket.*which).data_ptr<float>();
    values.emplace_back(data, data + bucket.grad.numel());
  }
  return values;
}

// Launches every bucket of a step and waits for all; the first error.
inline absl::Status RunStep(GradientSync& sync, const Plan& plan, const StepOptions& step) {
  std::vector<SyncHandle> handles;
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    handles.push_back(sync.Launch(step, static_cast<int>(b)));
  }
  absl::Status first;
  for (const SyncHandle& handle : handles) first.Update(handle.Wait(Soon()));
  return first;
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_RING_GROUP_H_
