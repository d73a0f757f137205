#include "worker/train/autocast.h"

#include "ATen/autocast_mode.h"

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

}  // namespace gradsync
