#include "worker/models/autocast_state.h"

#include "ATen/autocast_mode.h"
#include "torch/version.h"

namespace gradsync {

// Version 1 has a set of functions for each device, version 2 one for all.
#if TORCH_VERSION_MAJOR >= 2
AutocastState GetAutocast(c10::DeviceType device) {
  return {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
}

void SetAutocast(c10::DeviceType device, const AutocastState& state) {
  at::autocast::set_autocast_dtype(device, state.type);
  at::autocast::set_autocast_enabled(device, state.enabled);
}
#else
AutocastState GetAutocast(c10::DeviceType device) {
  if (device == c10::DeviceType::CPU) {
    return {at::autocast::is_cpu_enabled(), at::autocast::get_autocast_cpu_dtype()};
  }
  return {at::autocast::is_enabled(), at::autocast::get_autocast_gpu_dtype()};
}

void SetAutocast(c10::DeviceType device, const AutocastState& state) {
  if (device == c10::DeviceType::CPU) {
    at::autocast::set_autocast_cpu_dtype(state.type);
    at::autocast::set_cpu_enabled(state.enabled);
  } else {
    at::autocast::set_autocast_gpu_dtype(state.type);
    at::autocast::set_enabled(state.enabled);
  }
}
#endif

}  // namespace gradsync
