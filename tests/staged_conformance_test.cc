// Backends of the host under parameters on a GPU (sync/staged_sync.h): the fake, which has the
// host's arithmetic.

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "base/mutex.h"
#include "gpu/fake_gpu.h"
#include "links/grpc_stream.h"
#include "ps_client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "sync/local_sync.h"
#include "sync/staged_sync.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

using Host = std::function<absl::StatusOr<std::unique_ptr<GradientSync>>(const WorkerGroup&)>;

class StagedFixture : public BackendFixture {
 public:
  explicit StagedFixture(Host host) : host_(std::move(host)) {}

  // All ranks are gone.
  ~StagedFixture() override {
    MutexLock lock(&mutex_);
    for (const std::shared_ptr<FakeGpu>& gpu : gpus_) {
      EXPECT_EQ(gpu->live_objects(), 0);
      EXPECT_EQ(gpu->unpinned_copies(), 0);
    }
  }

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    absl::StatusOr<std::unique_ptr<GradientSync>> host = host_(group);
    if (!host.ok()) return host;
    const auto gpu = std::make_shared<FakeGpu>();
    MutexLock lock(&mutex_);
    gpus_.push_back(gpu);
    return CreateStagedSync(*std::move(host), gpu);
  }

 private:
  const Host host_;
  Mutex mutex_;
  std::vector<std::shared_ptr<FakeGpu>> gpus_ ABSL_GUARDED_BY(mutex_);
};

BackendTraits Staged(std::function<Host(UpdateSite)> make_host) {
  BackendTraits traits;
  traits.make_fixture = [make_host = std::move(make_host)](int, UpdateSite site) {
    return std::make_unique<StagedFixture>(make_host(site));
  };
  traits.world_sizes = {1, 2, 3};
  return traits;
}

BackendTraits Local() {
  BackendTraits traits = Staged([](UpdateSite site) -> Host {
    return [site](const WorkerGroup&) { return CreateLocalSync(site); };
  });
  traits.world_sizes = {1};
  return traits;
}

BackendTraits RingOverGrpc() {
  return Staged([](UpdateSite site) -> Host {
    return [site, link = NewGrpcLink()](const WorkerGroup& group) {
      RingOptions options;
      options.group = group;
      options.link = link;
      options.update_site = site;
      options.connections = 2;
      return CreateRingGradientSync(options);
    };
  });
}

BackendTraits RingOverShm() {
  return Staged([](UpdateSite site) -> Host {
    return [site](const WorkerGroup& group) {
      ShmRingOptions options;
      options.group = group;
      options.update_site = site;
      return CreateShmRingGradientSync(options);
    };
  });
}

BackendTraits ParameterServers(bool windows) {
  return Staged([windows](UpdateSite site) -> Host {
    const std::shared_ptr<StreamLink> link = NewGrpcLink();
    auto servers = std::make_shared<std::vector<std::unique_ptr<ParameterServer>>>();
    for (int i = 0; i < 2; ++i) {
      ServerOptions server;
      server.link = link;
      servers->push_back(*ParameterServer::Start(server));
    }
    return [=](const WorkerGroup& group) {
      PsOptions options;
      options.group = group;
      options.link = link;
      for (const auto& server : *servers) options.servers.push_back(server->address());
      options.update_site = site;
      options.windows = windows;
      return CreatePsGradientSync(options);
    };
  });
}

INSTANTIATE_TEST_SUITE_P(StagedLocal, ConformanceTest, testing::ValuesIn(ConformanceCases(Local())),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(RingOverGrpc())), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(RingOverShm())), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(ParameterServers(false))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(ParameterServers(true))), CaseName);

}  // namespace
}  // namespace gradsync
