#include "train/kept_models.h"

namespace gradsync {
namespace {

std::vector<at::Tensor> TensorsOf(const Model& model) {
  std::vector<at::Tensor> tensors = model.parameters();
  for (const at::Tensor& buffer : model.buffers()) tensors.push_back(buffer);
  return tensors;
}

std::vector<at::Tensor> CopyOf(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

void Set(const std::vector<at::Tensor>& values, Model& model) {
  const std::vector<at::Tensor> tensors = TensorsOf(model);
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].detach().copy_(values[i]);
}

}  // namespace

void KeptModels::Keep(const Model& model, int64_t step) { Keep(TensorsOf(model), step); }

void KeptModels::Keep(const std::vector<at::Tensor>& tensors, int64_t step) {
  kept_.push_back({step, CopyOf(tensors)});
}

absl::Status KeptModels::ForEach(Model& model,
                                 const std::function<absl::Status(int64_t step)>& visit) const {
  const std::vector<at::Tensor> last = CopyOf(TensorsOf(model));
  absl::Status status;
  for (const auto& [step, tensors] : kept_) {
    Set(tensors, model);
    status = visit(step);
    if (!status.ok()) break;
  }
  Set(last, model);
  return status;
}

}  // namespace gradsync
