#ifndef GRADSYNC_WORKER_TRAIN_AUTOCAST_H_
#define GRADSYNC_WORKER_TRAIN_AUTOCAST_H_

#include "c10/core/DeviceType.h"
#include "worker/models/autocast_state.h"
#include "worker/train/precision.h"

namespace gradsync {

// While it lives, LibTorch's autocast is on for this thread and device, as torch.autocast has it in
// Python: operations that gain from it cast their inputs, the others see fp32. The cast of a
// parameter is made once while a guard lives. With kFp32 it does nothing.
//
// For forward only: backward casts as forward did and belongs outside. Guards may be nested. To be
// destroyed by the thread that made it. Throws nothing.
class Autocast {
 public:
  // `precision` must have passed CheckPrecision() for `device`.
  Autocast(Precision precision, c10::DeviceType device);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool active_;
  const c10::DeviceType device_;
  AutocastState before_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_AUTOCAST_H_
