#include "gradsync/ddp/parameter_gathers.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::Status MakeParameterSlots(const std::vector<std::vector<std::string>>& units, Plan* plan) {
  GS_ASSIGN_OR_RETURN(const std::vector<std::vector<int>> buckets, UnitBuckets(*plan, units));
  BucketSlots slots = plan->slots();
  slots.parameters = ParameterSlotsFor(buckets);
  GS_ASSIGN_OR_RETURN(*plan, plan->WithSlots(slots));
  return absl::OkStatus();
}

absl::Status AgreeOnUnits(const std::vector<std::vector<std::string>>& units, SideChannel* ranks,
                          Deadline deadline) {
  if (ranks == nullptr) return absl::OkStatus();
  std::string mine;
  for (const std::vector<std::string>& unit : units) {
    absl::StrAppend(&mine, absl::StrJoin(unit, " "), "\n");
  }
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks->AllGather(mine, deadline));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat("the order of gathers differs between ",
                                                      ranks->Name(0), " and ", ranks->Name(rank),
                                                      ": ", FirstDifference(all[0], all[rank])));
  }
  return absl::OkStatus();
}

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

absl::Status ParameterGathers::Visit(
    const FlatParameters& parameters,
    const std::function<absl::Status(const std::string& name, const at::Tensor& parameter)>& visit,
    Deadline deadline) {
  for (const FlatParameter& p : parameters.parameters()) {
    GS_RETURN_IF_ERROR(NeedBucket(p.bucket, deadline));
    GS_RETURN_IF_ERROR(visit(p.name, p.parameter));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParameterGathers::Sha256(const FlatParameters& parameters,
                                                     Deadline deadline) {
  gradsync::Sha256 hash;
  const auto add = [&hash](const std::string&, const at::Tensor& parameter) {
    const at::Tensor row_major = parameter.detach().contiguous().cpu();
    hash.Update(row_major.data_ptr(), row_major.nbytes());
    return absl::OkStatus();
  };
  GS_RETURN_IF_ERROR(Visit(parameters, add, deadline));
  return hash.HexDigest();
}

}  // namespace gradsync
