#ifndef GRADSYNC_WORKER_MODELS_AUTOCAST_STATE_H_
#define GRADSYNC_WORKER_MODELS_AUTOCAST_STATE_H_

#include "c10/core/DeviceType.h"
#include "c10/core/ScalarType.h"

namespace gradsync {

// LibTorch's autocast of one device, in the calling thread.
struct AutocastState {
  bool enabled = false;
  c10::ScalarType type = c10::ScalarType::Float;
};

// The calling thread's state for `device`, the CPU or a GPU, in any release of LibTorch.
AutocastState GetAutocast(c10::DeviceType device);
void SetAutocast(c10::DeviceType device, const AutocastState& state);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_AUTOCAST_STATE_H_
