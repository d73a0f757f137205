// A backend of 160 lines (allreduce/star_sync.h) does all that is expected of one: the rest is the
// life that all share.

#include "allreduce/star_sync.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

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

}  // namespace
}  // namespace gradsync
