#include <memory>
#include <vector>

#include "allreduce/gloo_gradient_sync.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "allreduce/star_sync.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "core/sync/local_sync.h"
#include "gtest/gtest.h"
#include "tests/conformance_suite.h"
#include "tests/gpu_traits.h"

namespace gradsync {
namespace {

class LocalFixture : public BackendFixture {
 public:
  explicit LocalFixture(UpdateSite site) : site_(site) {}

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup&) override {
    return CreateLocalSync(site_);
  }

 private:
  const UpdateSite site_;
};

BackendTraits LocalTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) { return std::make_unique<LocalFixture>(site); };
  traits.world_sizes = {1};
  return traits;
}

INSTANTIATE_TEST_SUITE_P(Local, ConformanceTest, testing::ValuesIn(ConformanceCases(LocalTraits())),
                         CaseName);

// A backend of 160 lines (allreduce/star_sync.h) does all that is expected of one: the rest is the
// life that all share.

class StarFixture : public BackendFixture {
 public:
  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    return CreateStarSync(group);
  }
};

BackendTraits StarTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite) { return std::make_unique<StarFixture>(); };
  traits.update_at_owner = false;
  return traits;
}

INSTANTIATE_TEST_SUITE_P(Star, ConformanceTest, testing::ValuesIn(ConformanceCases(StarTraits())),
                         CaseName);

class RingFixture : public BackendFixture {
 public:
  RingFixture(std::shared_ptr<StreamLink> link, UpdateSite site)
      : link_(std::move(link)), site_(site) {}

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    RingOptions options;
    options.group = group;
    options.link = link_;
    options.update_site = site_;
    options.connections = 2;
    return CreateRingGradientSync(options);
  }

 private:
  const std::shared_ptr<StreamLink> link_;
  const UpdateSite site_;
};

// Streams within the process, with payloads cut at odd places and frames that are late.
BackendTraits InProcessTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) {
    InProcessLinkOptions options;
    options.split_payloads = true;
    options.max_delay = absl::Microseconds(200);
    return std::make_unique<RingFixture>(NewInProcessLink(options), site);
  };
  return traits;
}

BackendTraits GrpcTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) {
    return std::make_unique<RingFixture>(NewGrpcLink(), site);
  };
  traits.world_sizes = {2, 3};
  return traits;
}

BackendTraits TcpTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) {
    return std::make_unique<RingFixture>(NewTcpLink(), site);
  };
  traits.world_sizes = {2, 4};
  return traits;
}

INSTANTIATE_TEST_SUITE_P(RingInProcess, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(InProcessTraits())), CaseName);
INSTANTIATE_TEST_SUITE_P(RingOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(GrpcTraits())), CaseName);
INSTANTIATE_TEST_SUITE_P(RingOverTcp, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(TcpTraits())), CaseName);

class ShmFixture : public BackendFixture {
 public:
  explicit ShmFixture(UpdateSite site) : site_(site) {}

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    ShmRingOptions options;
    options.group = group;
    options.update_site = site_;
    return CreateShmRingGradientSync(options);
  }

 private:
  const UpdateSite site_;
};

BackendTraits ShmTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) { return std::make_unique<ShmFixture>(site); };
  return traits;
}

INSTANTIATE_TEST_SUITE_P(RingOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(ShmTraits())), CaseName);

#ifdef USE_C10D_GLOO  // not with pip's LibTorch, which lacks its headers

class GlooFixture : public BackendFixture {
 public:
  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    return CreateGlooGradientSync({group, UpdateSite::kWorker});
  }
};

BackendTraits GlooTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite) { return std::make_unique<GlooFixture>(); };
  traits.update_at_owner = false;
  traits.plan_order_beyond_two = false;
  traits.world_sizes = {1, 2, 3, 4};
  return traits;
}

INSTANTIATE_TEST_SUITE_P(Gloo, ConformanceTest, testing::ValuesIn(ConformanceCases(GlooTraits())),
                         CaseName);

#endif  // USE_C10D_GLOO

TEST(GlooTest, UpdateAtTheOwnersIsRefused) {
  const absl::Status status = CreateGlooGradientSync({WorkerGroup(), UpdateSite::kOwner}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

// The backend over GPU memory that ranks share, on fakes of the GPU: everything but CUDA.

class FakeIpcGpus : public GpuSource {
 public:
  // Whatever the test was about: nothing is left behind, nobody's memory was freed under him, and
  // copies were between memory that a GPU reaches.
  ~FakeIpcGpus() override {
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

std::unique_ptr<GpuSource> NewFakeIpcGpus() { return std::make_unique<FakeIpcGpus>(); }

std::vector<ConformanceCase> IpcCases(const IpcOptions& like) {
  return ConformanceCases(IpcTraits(NewFakeIpcGpus, like));
}

INSTANTIATE_TEST_SUITE_P(IpcRing, ConformanceTest, testing::ValuesIn(IpcCases(IpcRing())),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(IpcOneServer, ConformanceTest, testing::ValuesIn(IpcCases(IpcServers(1))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(IpcServerPerRank, ConformanceTest,
                         testing::ValuesIn(IpcCases(IpcServers(0))), CaseName);

// Backends of the host under parameters on a GPU (core/sync/staged_sync.h): the fake, which has the
// host's arithmetic.

class FakeStagedGpus : public GpuSource {
 public:
  // All ranks are gone.
  ~FakeStagedGpus() override {
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

std::unique_ptr<GpuSource> NewFakeStagedGpus() { return std::make_unique<FakeStagedGpus>(); }

INSTANTIATE_TEST_SUITE_P(StagedLocal, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedLocal(NewFakeStagedGpus))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedRingOverGrpc(NewFakeStagedGpus))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedRingOverShm(NewFakeStagedGpus))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedPs(NewFakeStagedGpus, false))),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(StagedPs(NewFakeStagedGpus, true))),
                         CaseName);

}  // namespace
}  // namespace gradsync
