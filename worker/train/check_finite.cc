#include "worker/train/check_finite.h"

#include <cmath>
#include <exception>
#include <utility>
#include <vector>

#include "ATen/ops/isfinite.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr absl::string_view kDiverged = ": the training has diverged, try a smaller --lr";

bool IsFinite(const at::Tensor& tensor) {
  return !tensor.is_floating_point() || at::isfinite(tensor.detach()).all().item<bool>();
}

absl::Status CheckTensor(absl::string_view where, const std::string& name,
                         const at::Tensor& tensor) {
  if (IsFinite(tensor)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(where,
                   ": expected finite parameters after it, found an infinite value or a NaN "
                   "in ",
                   name, kDiverged));
}

}  // namespace

absl::Status CheckFinite(absl::string_view where, double loss) {
  if (std::isfinite(loss)) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(where, ": expected a finite loss, found ", loss, kDiverged));
}

absl::Status CheckFinite(absl::string_view where, const std::string& name,
                         const at::Tensor& parameter) {
  try {
    return CheckTensor(where, name, parameter);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the model after the last step: LibTorch: ", e.what()));
  }
}

absl::Status CheckFinite(absl::string_view where, const Model& model) {
  try {
    for (const auto& p : model.named_parameters()) {
      GS_RETURN_IF_ERROR(CheckTensor(where, p.key(), p.value()));
    }
    for (const auto& b : model.named_buffers()) {
      GS_RETURN_IF_ERROR(CheckTensor(where, b.key(), b.value()));
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the model after the last step: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

absl::Status CheckFiniteWeights(const std::string& path, const Model& model) {
  try {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& p : model.named_parameters()) tensors.emplace_back(p.key(), p.value());
    for (const auto& b : model.named_buffers()) tensors.emplace_back(b.key(), b.value());
    for (const auto& [name, tensor] : tensors) {
      if (IsFinite(tensor)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--init_from: ", path,
                       ": expected finite weights (or --allow_nonfinite), "
                       "found an infinite value or a NaN in ",
                       name));
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("weights from ", path, ": LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
