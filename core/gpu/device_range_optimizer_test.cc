#include "core/gpu/device_range_optimizer.h"

#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/fake_gpu.h"
#include "core/optim/range_optimizer.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Padding at both ends and between two groups, one of them with another rate.
constexpr ElementRange kRange = {100, 164};
const std::vector<GroupRange>& Groups() {
  static const auto* const groups = new std::vector<GroupRange>{{{102, 130}, 0}, {{140, 160}, 1}};
  return *groups;
}

class DeviceRangeOptimizerTest : public testing::TestWithParam<OptimizerKind> {
 protected:
  static OptimizerSpec Spec() {
    OptimizerSpec spec;
    spec.kind = GetParam();
    spec.groups.resize(2);
    for (OptimizerGroup& group : spec.groups) {
      group.momentum = 0.9;
      group.dampening = 0.1;
      group.weight_decay = 0.01;
    }
    spec.groups[1].lr_scale = 0.5;
    return spec;
  }
};

TEST_P(DeviceRangeOptimizerTest, GivesTheBitsOfTheHosts) {
  const auto gpu = std::make_shared<FakeGpu>();
  const auto param = *GpuMemory::OnDevice(gpu, 64 * sizeof(float));
  const auto grad = *GpuMemory::OnDevice(gpu, 64 * sizeof(float));
  std::vector<float> host_param(64), host_grad(64);
  for (int i = 0; i < 64; ++i) param->floats()[i] = host_param[i] = 0.37f * static_cast<float>(i);
  DeviceRangeOptimizer device(gpu, Spec(), kRange, Groups());
  RangeOptimizer host(Spec(), kRange, Groups());
  EXPECT_FALSE(device.has_state());
  for (int64_t step = 1; step <= 3; ++step) {
    for (int i = 0; i < 64; ++i) {
      grad->floats()[i] = host_grad[i] = 0.11f * static_cast<float>((i * step) % 17 - 8);
    }
    ASSERT_TRUE(
        device.Apply(param->floats(), grad->floats(), 0.1, step, gpu->ComputeStream()).ok());
    host.Apply(host_param.data(), host_grad.data(), 0.1, step);
    EXPECT_EQ(std::memcmp(param->data(), host_param.data(), 64 * sizeof(float)), 0) << step;
  }
  ASSERT_EQ(device.slot_names(), host.slot_names());
  for (size_t slot = 0; slot < host.slot_names().size(); ++slot) {
    const int index = static_cast<int>(slot);
    EXPECT_EQ(std::memcmp(device.slot(index), host.slot(index).data(), 64 * sizeof(float)), 0);
  }
  device.ClearState();
  EXPECT_FALSE(device.has_state());
}

TEST_P(DeviceRangeOptimizerTest, WithoutMemoryItHasNoState) {
  const auto gpu = std::make_shared<FakeGpu>();
  DeviceRangeOptimizer device(gpu, Spec(), kRange, Groups());
  gpu->FailNext("AllocateDevice", absl::ResourceExhaustedError("full"));
  EXPECT_TRUE(absl::IsResourceExhausted(device.EnsureState()));
  EXPECT_FALSE(device.has_state());
  EXPECT_TRUE(device.EnsureState().ok());
  EXPECT_TRUE(device.has_state());
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceRangeOptimizerTest,
                         testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam,
                                         OptimizerKind::kAdamW));

}  // namespace
}  // namespace gradsync
