#include "benchmarks/profiles/step_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/records/proto_json.h"

namespace gradsync {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view expected, double found) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": expected ", expected, ", found ", found));
}

// `profile`, if it is one; `what` is named in errors.
absl::StatusOr<proto::StepProfile> Checked(proto::StepProfile profile, absl::string_view what) {
  const absl::Status valid = ValidateStepProfile(profile);
  if (valid.ok()) return profile;
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", valid.message()));
}

}  // namespace

absl::StatusOr<proto::StepProfile> ParseStepProfile(absl::string_view json,
                                                    absl::string_view what) {
  proto::StepProfile profile;
  GS_RETURN_IF_ERROR(ParseJson(json, what, &profile));
  return Checked(std::move(profile), what);
}

absl::StatusOr<proto::StepProfile> ReadStepProfile(const std::string& path) {
  proto::StepProfile profile;
  GS_RETURN_IF_ERROR(ReadJson(path, &profile));
  return Checked(std::move(profile), path);
}

absl::Status ValidateStepProfile(const proto::StepProfile& profile) {
  if (profile.model().empty()) {
    return absl::InvalidArgumentError("model: expected a name, found none");
  }
  if (profile.tensors().empty()) {
    return absl::InvalidArgumentError("tensors: expected at least one, found none");
  }
  const std::pair<const char*, double> times[] = {{"forward_us", profile.forward_us()},
                                                  {"backward_us", profile.backward_us()},
                                                  {"update_us", profile.update_us()}};
  for (const auto& time : times) {
    if (!std::isfinite(time.second) || time.second < 0) {
      return Refuse(time.first, "at least 0", time.second);
    }
  }
  const double end = profile.forward_us() + profile.backward_us();
  double before = 0;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) {
    if (tensor.numel() < 1) {
      return Refuse(tensor.name() + ".numel", "at least 1", tensor.numel());
    }
    if (!(tensor.ready_us() >= before && tensor.ready_us() <= end)) {
      return Refuse(
          tensor.name() + ".ready_us",
          absl::StrCat("between the last tensor's ", before, " and the end of backward ", end),
          tensor.ready_us());
    }
    before = tensor.ready_us();
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> ProfilePlan(const proto::StepProfile& profile, const PlanOptions& options) {
  std::vector<TensorSpec> tensors;
  for (const proto::ProfiledTensor& tensor : profile.tensors()) {
    TensorSpec spec;
    spec.name = tensor.name();
    spec.sizes = {tensor.numel()};
    spec.strides = {1};
    tensors.push_back(std::move(spec));
  }
  std::vector<int> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerKind::kSgd;
  optimizer.groups.emplace_back();
  return Plan::Create(std::move(tensors), order, std::move(optimizer), options);
}

std::vector<double> BucketReadyUs(const proto::StepProfile& profile, const Plan& plan) {
  std::vector<double> ready;
  double latest = 0;
  for (const BucketPlan& bucket : plan.buckets()) {
    for (const PlacedTensor& placed : bucket.tensors) {
      latest = std::max(latest, profile.tensors(placed.tensor).ready_us());
    }
    ready.push_back(latest);
  }
  return ready;
}

}  // namespace gradsync
