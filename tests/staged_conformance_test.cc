// Backends of the host under parameters on a GPU (core/sync/staged_sync.h): the fake, which has the
// host's arithmetic.

#include <memory>
#include <vector>

#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "tests/conformance_suite.h"
#include "tests/staged_traits.h"

namespace gradsync {
namespace {

class FakeGpus : public GpuSource {
 public:
  // All ranks are gone.
  ~FakeGpus() override {
    MutexLock lock(&mutex_);
    for (const std::shared_ptr<FakeGpu>& gpu : gpus_) {
      EXPECT_EQ(gpu->live_objects(), 0);
      EXPECT_EQ(gpu->unpinned_copies(), 0);
    }
  }

  absl::StatusOr<std::shared_ptr<GpuApi>> Open() override {
    MutexLock lock(&mutex_);
    return gpus_.emplace_back(std::make_shared<FakeGpu>());
  }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<FakeGpu>> gpus_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<GpuSource> NewFakeGpus() { return std::make_unique<FakeGpus>(); }

INSTANTIATE_TEST_SUITE_P(StagedLocal, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedLocal(NewFakeGpus))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedRingOverGrpc(NewFakeGpus))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedRingOverShm(NewFakeGpus))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedPs(NewFakeGpus, false))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedPs(NewFakeGpus, true))),
                         CaseName);

}  // namespace
}  // namespace gradsync
