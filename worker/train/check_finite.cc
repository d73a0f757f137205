#include "worker/train/check_finite.h"

#include <cmath>
#include <exception>

#include "ATen/ops/isfinite.h"
#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

constexpr absl::string_view kDiverged = ": the training has diverged, try a smaller --lr";

bool IsFinite(const at::Tensor& tensor) {
  return !tensor.is_floating_point() || at::isfinite(tensor.detach()).all().item<bool>();
}

// The name of the first that is not; empty: all are.
std::string FirstNotFinite(const Model& model) {
  for (const auto& p : model.named_parameters()) {
    if (!IsFinite(p.value())) return p.key();
  }
  for (const auto& b : model.named_buffers()) {
    if (!IsFinite(b.value())) return b.key();
  }
  return "";
}

// Of training that has come to `name`, or to nothing that is not finite.
absl::Status Diverged(absl::string_view where, const std::string& name) {
  if (name.empty()) return absl::OkStatus();
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
    return Diverged(where, IsFinite(parameter) ? "" : name);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the model after the last step: LibTorch: ", e.what()));
  }
}

absl::Status CheckFinite(absl::string_view where, const Model& model) {
  try {
    return Diverged(where, FirstNotFinite(model));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the model after the last step: LibTorch: ", e.what()));
  }
}

absl::Status CheckFiniteWeights(const std::string& path, const Model& model) {
  try {
    const std::string name = FirstNotFinite(model);
    if (name.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--init_from: ", path,
                     ": expected finite weights (or --allow_nonfinite), "
                     "found an infinite value or a NaN in ",
                     name));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("weights from ", path, ": LibTorch: ", e.what()));
  }
}

}  // namespace gradsync
