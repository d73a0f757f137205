#include <string>
#include <utility>
#include <vector>

#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/server.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

// Payloads in odd parts, streams that overtake each other.
std::shared_ptr<StreamLink> UnkindLink(int seed) {
  InProcessLinkOptions options;
  options.split_payloads = true;
  options.max_delay = absl::Microseconds(200);
  options.seed = static_cast<uint64_t>(seed);
  return NewInProcessLink(options);
}

class PsFixture : public BackendFixture {
 public:
  PsFixture(std::shared_ptr<StreamLink> link, int servers, UpdateSite site, bool windows = false)
      : site_(site), windows_(windows), link_(std::move(link)) {
    for (int i = 0; i < servers; ++i) {
      ServerOptions server;
      server.link = link_;
      servers_.push_back(*ParameterServer::Start(server));
    }
  }

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    PsOptions options;
    options.group = group;
    options.link = link_;
    for (const auto& server : servers_) options.servers.push_back(server->address());
    options.update_site = site_;
    options.windows = windows_;
    return CreatePsGradientSync(options);
  }

 private:
  const UpdateSite site_;
  const bool windows_;
  std::shared_ptr<StreamLink> link_;
  std::vector<std::unique_ptr<ParameterServer>> servers_;
};

BackendTraits InProcess(int servers) {
  BackendTraits traits;
  traits.make_fixture = [servers](int, UpdateSite site) {
    return std::make_unique<PsFixture>(UnkindLink(servers), servers, site);
  };
  return traits;
}

BackendTraits OverShm(int servers) {
  BackendTraits traits;
  traits.make_fixture = [servers](int, UpdateSite site) {
    return std::make_unique<PsFixture>(NewInProcessLink(), servers, site, /*windows=*/true);
  };
  return traits;
}

BackendTraits Over(std::shared_ptr<StreamLink> (*make_link)(), std::vector<int> world_sizes) {
  BackendTraits traits;
  traits.make_fixture = [make_link](int, UpdateSite site) {
    return std::make_unique<PsFixture>(make_link(), 2, site);
  };
  traits.world_sizes = std::move(world_sizes);
  return traits;
}

std::shared_ptr<StreamLink> Grpc() { return NewGrpcLink(); }
std::shared_ptr<StreamLink> Tcp() { return NewTcpLink(); }

INSTANTIATE_TEST_SUITE_P(OneServer, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(InProcess(1))), CaseName);
INSTANTIATE_TEST_SUITE_P(TwoServers, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(InProcess(2))), CaseName);
INSTANTIATE_TEST_SUITE_P(ThreeServers, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(InProcess(3))), CaseName);

INSTANTIATE_TEST_SUITE_P(OneServerOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(OverShm(1))), CaseName);
INSTANTIATE_TEST_SUITE_P(ThreeServersOverShm, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(OverShm(3))), CaseName);

INSTANTIATE_TEST_SUITE_P(OverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(Over(Grpc, {1, 3}))), CaseName);
INSTANTIATE_TEST_SUITE_P(OverTcp, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(Over(Tcp, {2, 3}))), CaseName);

}  // namespace
}  // namespace gradsync
