#include "worker/train/weight_average.h"

#include <algorithm>
#include <exception>
#include <functional>

#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"

namespace gradsync {
namespace {

std::vector<at::Tensor> TensorsOf(const Model& model) {
  std::vector<at::Tensor> tensors = model.parameters();
  for (const at::Tensor& buffer : model.buffers()) tensors.push_back(buffer);
  return tensors;
}

std::vector<std::string> NamesOf(const Model& model) {
  std::vector<std::string> names = model.named_parameters().keys();
  for (const std::string& buffer : model.named_buffers().keys()) names.push_back(buffer);
  return names;
}

absl::Status Guarded(const std::function<void()>& body) {
  try {
    c10::NoGradGuard no_grad;
    body();
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("average of the weights: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WeightAverage::Begin(const Model& model) {
  return Guarded([&] {
    names_ = NamesOf(model);
    tensors_.clear();
    for (const at::Tensor& tensor : TensorsOf(model)) tensors_.push_back(tensor.detach().clone());
    updates_ = 0;
  });
}

absl::Status WeightAverage::Update(const Model& model) {
  return Guarded([&] {
    const double t = static_cast<double>(updates_);
    const double decay = std::min(decay_, (1 + t) / (10 + t));
    const std::vector<at::Tensor> values = TensorsOf(model);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].is_floating_point()) {
        tensors_[i].lerp_(values[i], 1 - decay);
      } else {
        tensors_[i].copy_(values[i]);
      }
    }
    ++updates_;
  });
}

absl::Status WeightAverage::Swap(Model& model) {
  return Guarded([&] {
    const std::vector<at::Tensor> values = TensorsOf(model);
    for (size_t i = 0; i < values.size(); ++i) {
      const at::Tensor value = values[i].detach();
      const at::Tensor mine = tensors_[i].clone();
      tensors_[i].copy_(value);
      value.copy_(mine);
    }
  });
}

std::map<std::string, at::Tensor> WeightAverage::Export() const {
  std::map<std::string, at::Tensor> tensors;
  for (size_t i = 0; i < names_.size(); ++i) tensors[names_[i]] = tensors_[i].clone();
  return tensors;
}

absl::Status WeightAverage::Import(const std::map<std::string, at::Tensor>& tensors,
                                   int64_t updates) {
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto found = tensors.find(names_[i]);
    if (found == tensors.end() || found->second.sizes() != tensors_[i].sizes()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "average of the weights: expected ", names_[i], " of ", tensors_[i].numel(),
          " elements in the model's shape, found ",
          found == tensors.end() ? "none" : absl::StrCat(found->second.numel(), " elements")));
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("average of the weights: expected the tensors of the model, found ", name));
  }
  return Guarded([&] {
    for (size_t i = 0; i < names_.size(); ++i) tensors_[i].copy_(tensors.at(names_[i]));
    updates_ = updates;
  });
}

}  // namespace gradsync
