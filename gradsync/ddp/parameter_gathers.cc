#include "gradsync/ddp/parameter_gathers.h"

#include <utility>

#include "core/base/status_macros.h"

namespace gradsync {

ParameterGathers::ParameterGathers(GradientSync* sync, int buckets, int slots,
                                   std::vector<std::vector<int>> units)
    : sync_(sync), units_(std::move(units)), order_(buckets, slots), handles_(buckets) {}

void ParameterGathers::Begin(int bucket) {
  handles_[bucket] = sync_->Gather(bucket);
  ++gathers_;
}

absl::Status ParameterGathers::Need(UnitTurn turn, Deadline deadline) {
  for (int bucket : order_.Take(units_, turn)) Begin(bucket);
  for (int bucket : units_[turn.unit]) GS_RETURN_IF_ERROR(handles_[bucket]->Wait(deadline));
  return absl::OkStatus();
}

absl::Status ParameterGathers::NeedBucket(int bucket, Deadline deadline) {
  if (order_.TakeBucket(bucket)) Begin(bucket);
  return handles_[bucket]->Wait(deadline);
}

}  // namespace gradsync
