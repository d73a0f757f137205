#include "allreduce/nccl_exchange.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

std::string Name(int bucket, const StepOptions& step) {
  return absl::StrCat("bucket ", bucket, " of step ", step.step);
}

}  // namespace

NcclExchange::NcclExchange(const NcclLane& lane, std::unique_ptr<NcclTopology> topology,
                           int num_buckets, std::function<void(absl::Status)> refuse)
    : lane_(lane),
      topology_(std::move(topology)),
      num_buckets_(num_buckets),
      refuse_(std::move(refuse)) {}

absl::StatusOr<std::unique_ptr<NcclExchange>> NcclExchange::Create(
    const NcclLane& lane, std::unique_ptr<NcclTopology> topology, const Plan& plan, UpdateSite site,
    std::function<void(absl::Status)> refuse) {
  std::unique_ptr<NcclExchange> exchange(new NcclExchange(
      lane, std::move(topology), static_cast<int>(plan.buckets().size()), std::move(refuse)));
  if (site == UpdateSite::kOwner) {
    GS_ASSIGN_OR_RETURN(exchange->owner_, NcclOwner::Create(lane.gpu, lane.buckets, plan, lane.rank,
                                                            exchange->topology_->shares()));
  }
  return exchange;
}

absl::Status NcclExchange::Run(const StepOptions& step, int bucket, Complete complete) {
  if (owner_ != nullptr && bucket == 0) {
    GS_RETURN_IF_ERROR(
        owner_->CompareSteps(step, *lane_.communicator, refuse_, lane_.stream, lane_.Soon()));
  }
  GS_RETURN_IF_ERROR(
      topology_->Reduce(Name(bucket, step), bucket, static_cast<float>(step.inverse_loss_scale)));
  if (owner_ == nullptr || step.max_norm == 0) return UpdateAndSpread(step, bucket, complete);
  if (bucket + 1 < num_buckets_) return absl::OkStatus();
  GS_RETURN_IF_ERROR(owner_->AgreeOnFactor(step, *lane_.communicator, lane_.stream, lane_.Soon()));
  for (int b = 0; b < num_buckets_; ++b) {
    GS_RETURN_IF_ERROR(owner_->Clip(b, lane_.stream));
    GS_RETURN_IF_ERROR(UpdateAndSpread(step, b, complete));
  }
  return absl::OkStatus();
}

absl::Status NcclExchange::UpdateAndSpread(const StepOptions& step, int bucket, Complete complete) {
  if (owner_ != nullptr) GS_RETURN_IF_ERROR(owner_->state().Update(bucket, step, lane_.stream));
  GS_RETURN_IF_ERROR(topology_->Spread(Name(bucket, step), bucket));
  return complete(bucket);
}

absl::StatusOr<OptimizerState> NcclExchange::Export(int64_t steps, SideChannel& side_channel,
                                                    Deadline deadline) {
  return owner_->state().Export(steps, lane_.stream, side_channel, deadline);
}

absl::Status NcclExchange::Import(const OptimizerState& state) {
  return owner_->state().Import(state, lane_.stream);
}

}  // namespace gradsync
