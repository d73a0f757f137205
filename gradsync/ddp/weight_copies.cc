#include "gradsync/ddp/weight_copies.h"

#include <exception>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/tensor_over.h"

namespace gradsync {
namespace {

absl::Status Thrown(const char* doing, const std::exception& error) {
  return absl::InternalError(absl::StrCat(doing, " copies of weights: ", error.what()));
}

}  // namespace

absl::StatusOr<WeightCopies> WeightCopies::Create(c10::ScalarType type,
                                                  const std::vector<std::string>& names,
                                                  const std::vector<GradBucket>& buckets,
                                                  FlatParameters* parameters) {
  const absl::flat_hash_set<std::string> wanted(names.begin(), names.end());
  WeightCopies copies;
  std::vector<Bucket> flat(buckets.size());
  std::vector<std::pair<size_t, at::Tensor>> leaves;
  try {
    c10::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters->parameters().size(); ++i) {
      const FlatParameter& p = parameters->parameters()[i];
      if (!wanted.contains(p.name)) continue;
      Bucket& bucket = flat[p.bucket];
      if (!bucket.weights.defined()) {
        bucket.weights = TensorOver(buckets[p.bucket].param);
        bucket.copies = at::empty(bucket.weights.sizes(), bucket.weights.options().dtype(type));
        copies.buckets_.push_back(bucket);
      }
      // As the parameter lies in its bucket.
      at::Tensor leaf = bucket.copies.as_strided(p.parameter.sizes(), p.parameter.strides(),
                                                 p.parameter.storage_offset());
      leaf.requires_grad_(true);
      leaves.emplace_back(i, std::move(leaf));
    }
  } catch (const std::exception& error) {
    return Thrown("making", error);
  }
  GS_RETURN_IF_ERROR(copies.Refresh());
  for (auto& [index, leaf] : leaves) parameters->SetLeaf(index, std::move(leaf));
  return copies;
}

absl::Status WeightCopies::Refresh() const {
  try {
    c10::NoGradGuard no_grad;
    for (const Bucket& bucket : buckets_) bucket.copies.copy_(bucket.weights);
  } catch (const std::exception& error) {
    return Thrown("rounding", error);
  }
  return absl::OkStatus();
}

}  // namespace gradsync
