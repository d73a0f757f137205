#include "tests/gpu_traits.h"

#include <utility>
#include <vector>

#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/status_macros.h"
#include "core/links/grpc_stream.h"
#include "core/sync/local_sync.h"
#include "core/sync/staged_sync.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"

namespace gradsync {
namespace {

using Host = std::function<absl::StatusOr<std::unique_ptr<GradientSync>>(const WorkerGroup&)>;

class StagedFixture : public BackendFixture {
 public:
  StagedFixture(Host host, std::unique_ptr<GpuSource> gpus)
      : gpus_(std::move(gpus)), host_(std::move(host)) {}

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<GradientSync> host, host_(group));
    GS_ASSIGN_OR_RETURN(std::shared_ptr<GpuApi> gpu, gpus_->Open());
    return CreateStagedSync(std::move(host), std::move(gpu));
  }

 private:
  const std::unique_ptr<GpuSource> gpus_;
  const Host host_;
};

BackendTraits Staged(const GpuSourceFactory& gpus, std::function<Host(UpdateSite)> make_host) {
  BackendTraits traits;
  traits.make_fixture = [gpus, make_host = std::move(make_host)](int, UpdateSite site) {
    return std::make_unique<StagedFixture>(make_host(site), gpus());
  };
  traits.world_sizes = {1, 2, 3};
  return traits;
}

}  // namespace

BackendTraits StagedLocal(const GpuSourceFactory& gpus) {
  BackendTraits traits = Staged(gpus, [](UpdateSite site) -> Host {
    return [site](const WorkerGroup&) { return CreateLocalSync(site); };
  });
  traits.world_sizes = {1};
  return traits;
}

BackendTraits StagedRingOverGrpc(const GpuSourceFactory& gpus) {
  return Staged(gpus, [](UpdateSite site) -> Host {
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

BackendTraits StagedRingOverShm(const GpuSourceFactory& gpus) {
  return Staged(gpus, [](UpdateSite site) -> Host {
    return [site](const WorkerGroup& group) {
      ShmRingOptions options;
      options.group = group;
      options.update_site = site;
      return CreateShmRingGradientSync(options);
    };
  });
}

BackendTraits StagedPs(const GpuSourceFactory& gpus, bool windows) {
  return Staged(gpus, [windows](UpdateSite site) -> Host {
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

}  // namespace gradsync
