#include "allreduce/shm_gradient_sync.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

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

}  // namespace
}  // namespace gradsync
