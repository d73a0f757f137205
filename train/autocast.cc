#include "train/autocast.h"

#include "ATen/autocast_mode.h"
#include "torch/version.h"

namespace gradsync {
namespace {

// Version 1 has a set of functions for each device, version 2 one for all.
#if TORCH_VERSION_MAJOR >= 2
bool IsEnabled(c10::DeviceType device) { return at::autocast::is_autocast_enabled(device); }
void SetEnabled(c10::DeviceType device, bool enabled) {
  at::autocast::set_autocast_enabled(device, enabled);
}
c10::ScalarType TypeOf(c10::DeviceType device) { return at::autocast::get_autocast_dtype(device); }
void SetType(c10::DeviceType device, c10::ScalarType type) {
  at::autocast::set_autocast_dtype(device, type);
}
#else
bool IsEnabled(c10::DeviceType device) {
  return device == c10::DeviceType::CPU ? at::autocast::is_cpu_enabled()
                                        : at::autocast::is_enabled();
}
void SetEnabled(c10::DeviceType device, bool enabled) {
  device == c10::DeviceType::CPU ? at::autocast::set_cpu_enabled(enabled)
                                 : at::autocast::set_enabled(enabled);
}
c10::ScalarType TypeOf(c10::DeviceType device) {
  return device == c10::DeviceType::CPU ? at::autocast::get_autocast_cpu_dtype()
                                        : at::autocast::get_autocast_gpu_dtype();
}
void SetType(c10::DeviceType device, c10::ScalarType type) {
  device == c10::DeviceType::CPU ? at::autocast::set_autocast_cpu_dtype(type)
                                 : at::autocast::set_autocast_gpu_dtype(type);
}
#endif

}  // namespace

Autocast::Autocast(Precision precision, c10::DeviceType device)
    : active_(precision != Precision::kFp32), device_(device) {
  if (!active_) return;
  enabled_before_ = IsEnabled(device_);
  type_before_ = TypeOf(device_);
  SetType(device_, ScalarTypeOf(precision));
  SetEnabled(device_, true);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  SetEnabled(device_, enabled_before_);
  SetType(device_, type_before_);
}

}  // namespace gradsync
