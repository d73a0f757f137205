#include "allreduce/ring_gradient_sync.h"
#include "links/in_process_stream.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

// Ranks over streams within the process, with payloads cut at odd places and frames that are late.
class RingFixture : public BackendFixture {
 public:
  explicit RingFixture(UpdateSite site) : site_(site) {
    InProcessLinkOptions options;
    options.split_payloads = true;
    options.max_delay = absl::Microseconds(200);
    link_ = NewInProcessLink(options);
  }

  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    RingOptions options;
    options.group = group;
    options.link = link_;
    options.update_site = site_;
    options.connections = 2;
    return CreateRingGradientSync(options);
  }

 private:
  const UpdateSite site_;
  std::shared_ptr<StreamLink> link_;
};

BackendTraits RingTraits() {
  BackendTraits traits;
  traits.make_fixture = [](int, UpdateSite site) { return std::make_unique<RingFixture>(site); };
  return traits;
}

INSTANTIATE_TEST_SUITE_P(Ring, ConformanceTest, testing::ValuesIn(ConformanceCases(RingTraits())),
                         CaseName);

}  // namespace
}  // namespace gradsync
