// Ranks of a ring as threads, for tests.

#ifndef GRADSYNC_TESTS_RING_GROUP_H_
#define GRADSYNC_TESTS_RING_GROUP_H_

#include <memory>
#include <utility>
#include <vector>

#include "allreduce/ring_gradient_sync.h"
#include "core/group/key_value_store.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

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

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_RING_GROUP_H_
