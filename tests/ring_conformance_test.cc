#include "allreduce/ring_gradient_sync.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

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
  traits.world_sizes = {2, 3, 4};
  return traits;
}

INSTANTIATE_TEST_SUITE_P(RingInProcess, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(InProcessTraits())), CaseName);
INSTANTIATE_TEST_SUITE_P(RingOverGrpc, ConformanceTest,
                         testing::ValuesIn(ConformanceCases(GrpcTraits())), CaseName);

}  // namespace
}  // namespace gradsync
