// The backend over GPU memory that ranks share, on fakes of the GPU: everything but CUDA.

#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "gtest/gtest.h"
#include "tests/conformance_suite.h"
#include "tests/ipc_traits.h"

namespace gradsync {
namespace {

class FakeGpus : public GpuSource {
 public:
  // Whatever the test was about: nothing is left behind, nobody's memory was freed under him, and
  // copies were between memory that a GPU reaches.
  ~FakeGpus() override {
    for (const std::shared_ptr<FakeGpu>& gpu : gpus_) {
      EXPECT_EQ(gpu->live_objects(), 0);
      EXPECT_EQ(gpu->early_releases(), 0);
    }
  }

  absl::StatusOr<std::shared_ptr<GpuApi>> Open() override {
    MutexLock lock(&mutex_);
    gpus_.push_back(std::make_shared<FakeGpu>(static_cast<int>(gpus_.size())));
    return gpus_.back();
  }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<FakeGpu>> gpus_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<GpuSource> NewFakes() { return std::make_unique<FakeGpus>(); }

std::vector<ConformanceCase> Cases(const IpcOptions& like) {
  return ConformanceCases(IpcTraits(NewFakes, like));
}

INSTANTIATE_TEST_SUITE_P(IpcRing, ConformanceTest, testing::ValuesIn(Cases(IpcRing())), CaseName);
INSTANTIATE_TEST_SUITE_P(IpcOneServer, ConformanceTest, testing::ValuesIn(Cases(IpcServers(1))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(IpcServerPerRank, ConformanceTest, testing::ValuesIn(Cases(IpcServers(0))),
                         CaseName);

}  // namespace
}  // namespace gradsync
