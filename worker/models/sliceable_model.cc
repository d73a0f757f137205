#include "worker/models/sliceable_model.h"

#include <utility>

#include "ATen/ops/cat.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"

namespace gradsync {
namespace {

// The sizes of a part: of the first dimension that groups do not fill, one `slices`-th.
std::vector<int64_t> PartSizes(const at::Tensor& whole, int64_t groups, int64_t slices) {
  std::vector<int64_t> sizes = whole.sizes().vec();
  // With as many groups as rows it is the columns that are cut.
  const bool columns = sizes.size() > 1 && groups == sizes[0];
  sizes[columns ? 1 : 0] /= slices;
  return sizes;
}

}  // namespace

absl::Status SliceModel(Model& model, const SliceOf& of) {
  auto* const sliceable = dynamic_cast<SliceableModel*>(&model);
  if (sliceable == nullptr) {
    return absl::InvalidArgumentError("expected a model that has slices (gpt)");
  }
  const int64_t slices = of.exchange->slices();
  const c10::NoGradGuard no_grad;
  auto parameters = model.named_parameters();
  for (const auto& [name, groups] : sliceable->SlicedParameters()) {
    at::Tensor* const whole = parameters.find(name);
    if (whole == nullptr || whole->numel() % (groups * slices) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", name, ": expected one that ", slices, " slices divide"));
    }
    const at::Tensor part =
        whole->detach().reshape({groups, slices, -1}).select(1, of.exchange->slice());
    whole->set_data(part.reshape(PartSizes(*whole, groups, slices)).clone());
  }
  sliceable->BecomeSlice(of);
  return absl::OkStatus();
}

at::Tensor JoinParts(const std::vector<at::Tensor>& parts, int64_t groups) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> rows;
  rows.reserve(parts.size());
  for (const at::Tensor& part : parts) rows.push_back(part.detach().reshape({groups, -1}));
  return at::cat(rows, 1).flatten();
}

}  // namespace gradsync
