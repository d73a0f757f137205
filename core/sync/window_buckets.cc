#include "core/sync/window_buckets.h"

#include <cstdint>

namespace gradsync {

std::vector<GradBucket> WindowBuckets(const WindowGroup& group, int rank,
                                      const std::shared_ptr<Window>& window) {
  const WindowLayout layout = group.Layout(rank);
  const auto flat = [&](int64_t offset, int64_t numel) {
    return FlatBuffer{window->data() + offset, numel, ElementType::kFloat32, FlatBuffer::kHost,
                      window};
  };
  std::vector<GradBucket> buckets;
  for (int bucket = 0; bucket < static_cast<int>(group.plan().buckets().size()); ++bucket) {
    const int64_t numel = group.plan().buckets()[bucket].numel;
    buckets.push_back(
        {flat(layout.grad_offset(bucket), numel), flat(layout.param_offset(bucket), numel)});
  }
  return buckets;
}

}  // namespace gradsync
