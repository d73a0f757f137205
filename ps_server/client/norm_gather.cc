#include "ps_server/client/norm_gather.h"

#include <cmath>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

NormGather::NormGather(const Plan& plan, const ShardMap& shards) : chunks_(shards.servers()) {
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (layout.range(slot).empty()) continue;
      owners_.push_back(shards.server({b, slot}));
      ++chunks_[owners_.back()];
    }
  }
  for (int server = 0; server < shards.servers(); ++server) {
    if (chunks_[server] > 0) servers_.push_back(server);
  }
  squares_.resize(shards.servers());
}

void NormGather::Begin(int64_t step) {
  MutexLock lock(&mutex_);
  step_ = step;
  for (std::vector<double>& squares : squares_) squares.clear();
}

absl::StatusOr<absl::optional<double>> NormGather::Add(int server, int64_t step,
                                                       const Payload& payload) {
  MutexLock lock(&mutex_);
  if (step != step_ || !squares_[server].empty() || chunks_[server] == 0 ||
      payload.size() != chunks_[server] * sizeof(double)) {
    return absl::InvalidArgumentError(absl::StrCat("sums of squares: expected ", chunks_[server],
                                                   " of step ", step_, ", once, found ",
                                                   payload.size(), " bytes for step ", step));
  }
  const std::string bytes = payload.Flat();
  squares_[server].resize(chunks_[server]);
  std::memcpy(squares_[server].data(), bytes.data(), bytes.size());
  bool complete = true;
  for (int s : servers_) complete = complete && !squares_[s].empty();
  if (!complete) return absl::optional<double>();
  std::vector<size_t> next(squares_.size(), 0);
  double sum = 0;
  for (int owner : owners_) sum += squares_[owner][next[owner]++];
  return absl::optional<double>(std::sqrt(sum));
}

}  // namespace gradsync
