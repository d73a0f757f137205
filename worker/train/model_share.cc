#include "worker/train/model_share.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "worker/models/loss.h"
#include "worker/train/check_finite.h"

namespace gradsync {

absl::Status ModelShare::Begin(DdpEngine* ddp) {
  ddp_ = ddp;
  return absl::OkStatus();
}

at::Tensor ModelShare::Forward(const at::Tensor& inputs) {
  return gradsync::Forward(compute_, *model_, inputs);
}

SlicedLoss ModelShare::Loss(const at::Tensor& logits, const at::Tensor& labels,
                            double label_smoothing) {
  const at::Tensor loss = CrossEntropy(logits, labels, label_smoothing);
  return {loss, CorrectPredictions(logits, labels)};
}

void ModelShare::Backward(const at::Tensor& objective) { objective.backward(); }

absl::StatusOr<at::Tensor> ModelShare::TestLogits(const at::Tensor& inputs) {
  try {
    return gradsync::Forward(compute_, *model_, inputs);
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("evaluation: LibTorch: ", e.what()));
  }
}

absl::Status ModelShare::CheckFiniteParameters(const std::string& where, Deadline) {
  return CheckFinite(where, *model_);
}

absl::StatusOr<std::string> ModelShare::ParamsSha256(Deadline) { return ddp_->ParamsSha256(); }

}  // namespace gradsync
