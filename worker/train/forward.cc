#include "worker/train/forward.h"

#include <utility>

#include "ATen/autocast_mode.h"
#include "c10/core/GradMode.h"
#include "worker/models/layers.h"

namespace gradsync {

Autocast::Autocast(Precision precision, c10::DeviceType device)
    : active_(precision != Precision::kFp32), device_(device) {
  if (!active_) return;
  before_ = GetAutocast(device_);
  SetAutocast(device_, {/*enabled=*/true, ScalarTypeOf(precision)});
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  SetAutocast(device_, before_);
}

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
  return ForwardBlocks(options, model, 0, static_cast<int>(model.blocks().size()), images);
}

at::Tensor ForwardBlocks(const ComputeOptions& options, Model& model, int first, int end,
                         const at::Tensor& input) {
  const Autocast autocast(options.precision, input.device().type());
  at::Tensor x = input;
  if (first == 0 && x.dim() == 4) {  // images, no tokens
    x = x.contiguous(options.channels_last ? at::MemoryFormat::ChannelsLast
                                           : at::MemoryFormat::Contiguous);
  }
  x = model.ForwardBlocks(first, end, std::move(x));
  return end == static_cast<int>(model.blocks().size()) ? x.to(at::kFloat) : x;
}

}  // namespace gradsync
