#include "core/sync/local_sync.h"
#include "tests/conformance_suite.h"

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

}  // namespace
}  // namespace gradsync
