// The GPU of this machine, for tests that need one.

#ifndef GRADSYNC_TESTS_REAL_GPU_H_
#define GRADSYNC_TESTS_REAL_GPU_H_

#include <memory>

#include "absl/status/statusor.h"
#include "core/gpu/open_gpu.h"
#include "gtest/gtest.h"

namespace gradsync {

// GPU 0. As with OpenGpu(), each call makes an object of its own; ranks that are threads of one
// process share the GPU.
// Errors: NOT_FOUND without a GPU, FAILED_PRECONDITION without --config=cuda.
inline absl::StatusOr<std::shared_ptr<GpuApi>> OpenTestGpu() { return OpenGpu(0); }

// A test that is skipped, and says why, where there is no GPU; fails where there is one that cannot
// be opened.
class RealGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<GpuApi>> gpu = OpenTestGpu();
    if (absl::IsNotFound(gpu.status()) || absl::IsFailedPrecondition(gpu.status())) {
      GTEST_SKIP() << gpu.status().message();
    }
    ASSERT_TRUE(gpu.ok()) << gpu.status();
    gpu_ = *std::move(gpu);
  }

  std::shared_ptr<GpuApi> gpu_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_REAL_GPU_H_
