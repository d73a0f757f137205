#include "worker/train/tensor_slice.h"

#include <exception>
#include <map>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/equal.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/flat_parameters.h"
#include "worker/models/slices.h"

namespace gradsync {

absl::StatusOr<std::unique_ptr<TensorSlice>> TensorSlice::Create(const TensorSliceOptions& options,
                                                                 const SlicePlace& place,
                                                                 std::shared_ptr<Model> model) {
  auto slice = absl::WrapUnique(new TensorSlice(options, place, std::move(model)));
  GS_RETURN_IF_ERROR(
      place.link->Connect(absl::StrCat("that are ", place.link->slices(), " slices",
                                       options.split_sequence ? " with parts of sequences" : ""),
                          Deadline::In(options.timeout)));
  try {
    GS_RETURN_IF_ERROR(SliceModel(slice->model(), {&slice->channel_, options.split_sequence}));
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("slicing the model: LibTorch: ", e.what()));
  }
  return slice;
}

absl::StatusOr<at::Tensor> TensorSlice::TestLogits(const at::Tensor& inputs) {
  const absl::StatusOr<at::Tensor> part = ModelShare::TestLogits(inputs);
  GS_RETURN_IF_ERROR(status());
  GS_RETURN_IF_ERROR(part.status());
  GS_ASSIGN_OR_RETURN(const std::vector<at::Tensor> all, channel_.Gather(*part));
  return link_->slice() == 0 ? at::cat(all, -1) : at::Tensor();
}

absl::StatusOr<std::string> TensorSlice::ParamsSha256(Deadline) {
  const std::map<std::string, int64_t> sliced =
      dynamic_cast<SliceableModel&>(model()).SlicedParameters();
  Sha256 hash;
  for (const NamedParameter& parameter : TrainableParametersOf(model())) {
    // A copy: the link may still read it when the next step writes to the parameter.
    GS_ASSIGN_OR_RETURN(const std::vector<at::Tensor> parts,
                        channel_.Gather(parameter.tensor.detach().clone().contiguous()));
    const auto found = sliced.find(parameter.name);
    at::Tensor whole = parts[0];
    if (found != sliced.end()) whole = JoinParts(parts, found->second);
    for (size_t s = 1; found == sliced.end() && s < parts.size(); ++s) {
      if (at::equal(parts[s], parts[0])) continue;
      return absl::InternalError(absl::StrCat("parameter ", parameter.name,
                                              ": expected the same on all slices, found another on",
                                              " slice ", s));
    }
    hash.Update(whole.data_ptr(), whole.nbytes());
  }
  return hash.HexDigest();
}

absl::Status TensorSlice::Finish() { return link_->Finish(Deadline::In(options_.timeout)); }

}  // namespace gradsync
