#ifndef GRADSYNC_CORE_GPU_DEVICE_RANGE_OPTIMIZER_H_
#define GRADSYNC_CORE_GPU_DEVICE_RANGE_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/plan.h"
#include "core/plan/stripes.h"

namespace gradsync {

// RangeOptimizer (core/optim/range_optimizer.h) over memory of the device, with the same bits: what
// it says of arguments, state and its beginning holds here too. Thread-compatible.
class DeviceRangeOptimizer {
 public:
  DeviceRangeOptimizer(std::shared_ptr<GpuApi> gpu, const OptimizerSpec& spec, ElementRange range,
                       std::vector<GroupRange> groups);

  // Queues one step on `stream`. Errors: those of GpuApi.
  absl::Status Apply(float* param, const float* grad, double lr, int64_t step, GpuStream stream);

  int64_t size() const { return size_; }
  const std::vector<std::string>& slot_names() const { return slot_names_; }
  bool has_state() const { return has_state_; }

  // The values of slot `index`, size() floats of the device. Null before has_state().
  float* slot(int index) const { return has_state_ ? slots_[index]->floats() : nullptr; }

  // For import: makes state, of zeros where there is none yet; the caller writes all slots.
  absl::Status EnsureState();

  // Forgets the state. Its queued work must be done.
  void ClearState();

 private:
  const std::shared_ptr<GpuApi> gpu_;
  const OptimizerSpec spec_;
  const int64_t size_;
  std::vector<GroupRange> groups_;  // counted from the range's first element
  const std::vector<std::string> slot_names_;
  std::vector<std::shared_ptr<GpuMemory>> slots_;
  bool has_state_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_DEVICE_RANGE_OPTIMIZER_H_
