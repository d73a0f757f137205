#include "train/forward.h"

#include "c10/core/GradMode.h"
#include "models/layers.h"
#include "train/autocast.h"

namespace gradsync {

void SetMemoryFormat(const ComputeOptions& options, Model& model) {
  if (!options.channels_last) return;
  c10::NoGradGuard no_grad;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* norm = module->as<BatchNorm2d>()) norm->set_fused(options.fused_norm);
  }
}

at::Tensor Forward(const ComputeOptions& options, Model& model, const at::Tensor& images) {
  const Autocast autocast(options.precision, images.device().type());
  if (images.dim() != 4) return model.forward(images).to(at::kFloat);  // tokens
  const auto format =
      options.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
  return model.forward(images.contiguous(format)).to(at::kFloat);
}

}  // namespace gradsync
