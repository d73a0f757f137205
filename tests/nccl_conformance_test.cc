// NCCL's backend over the fakes of NCCL and of the GPU: everything but the two of them.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allreduce/fake_nccl.h"
#include "allreduce/nccl_gradient_sync.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

class NcclFixture : public BackendFixture {
 public:
  // `owners` as in NcclOptions.
  NcclFixture(UpdateSite site, int owners) : site_(site), owners_(owners) {}

  // Whatever the test was about: NCCL's rules were kept, and nothing is left behind.
  ~NcclFixture() override {
    EXPECT_TRUE(network_->mismatches().empty());
    for (const std::shared_ptr<FakeNccl>& nccl : nccls_) {
      for (const std::string& misuse : nccl->misuses()) ADD_FAILURE() << misuse;
      EXPECT_EQ(nccl->live_communicators(), 0);
      EXPECT_EQ(nccl->live_registrations(), 0);
    }
    for (const std::shared_ptr<FakeGpu>& gpu : gpus_) {
      EXPECT_EQ(gpu->live_objects(), 0);
      for (const std::string& misuse : gpu->TakeMisuses()) ADD_FAILURE() << misuse;
    }
  }

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    NcclOptions options;
    options.group = group;
    options.update_site = site_;
    options.owners = owners_;
    const auto gpu = std::make_shared<FakeGpu>(group.rank);
    const auto nccl = std::make_shared<FakeNccl>(network_, gpu);
    nccl->StayInProgress(group.rank % 3);  // some return at once, some later
    options.gpu = gpu;
    options.nccl = nccl;
    {
      MutexLock lock(&mutex_);
      gpus_.push_back(gpu);
      nccls_.push_back(nccl);
    }
    return CreateNcclGradientSync(options);
  }

 private:
  const UpdateSite site_;
  const int owners_;
  const std::shared_ptr<FakeNcclNetwork> network_ = std::make_shared<FakeNcclNetwork>();
  Mutex mutex_;
  std::vector<std::shared_ptr<FakeGpu>> gpus_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<FakeNccl>> nccls_ ABSL_GUARDED_BY(mutex_);
};

BackendTraits RingTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) { return std::make_unique<NcclFixture>(site, 0); };
  traits.plan_order_beyond_two = false;
  traits.world_sizes = {1, 2, 3, 4};
  return traits;
}

// With the bits of the plan for every number of ranks.
BackendTraits ServerTraits(std::function<int(int world_size)> owners) {
  BackendTraits traits;
  traits.make_fixture = [owners = std::move(owners)](int world_size, UpdateSite site) {
    return std::make_unique<NcclFixture>(site, owners(world_size));
  };
  traits.world_sizes = {1, 2, 3, 4};
  return traits;
}

int One(int) { return 1; }
int Half(int world_size) { return (world_size + 1) / 2; }
int All(int world_size) { return world_size; }

INSTANTIATE_TEST_SUITE_P(Nccl, ConformanceTest, testing::ValuesIn(ConformanceCases(RingTraits())),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(NcclOneServer, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(ServerTraits(One))), CaseName);
INSTANTIATE_TEST_SUITE_P(NcclHalfServers, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(ServerTraits(Half))), CaseName);
INSTANTIATE_TEST_SUITE_P(NcclAllServers, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(ServerTraits(All))), CaseName);

}  // namespace
}  // namespace gradsync
