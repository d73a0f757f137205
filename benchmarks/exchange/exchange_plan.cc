#include "benchmarks/exchange/exchange_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/process_resources.h"

namespace gradsync {

absl::StatusOr<Plan> ExchangePlan(const ExchangeOptions& options) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> buckets;
  const int64_t elements = (options.bytes + 3) / 4;
  const int64_t largest = std::max<int64_t>(options.bucket_bytes / 4, 1);
  for (int64_t at = 0; at < elements; at += largest) {
    const int index = static_cast<int>(tensors.size());
    tensors.push_back({absl::StrCat("t", index), {std::min(largest, elements - at)}, {1}, 0});
    buckets.push_back({index});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return Plan::FromBuckets(std::move(tensors), buckets, std::move(optimizer), options.world_size,
                           options.chunk_bytes, options.codec);
}

absl::Status CheckExchangeMemory(absl::string_view what, const ExchangeOptions& options,
                                 bool on_host) {
  const int64_t copies = on_host ? 3 : 1;
  return CheckMemory(what, static_cast<uint64_t>(options.world_size * copies * options.bytes));
}

}  // namespace gradsync
