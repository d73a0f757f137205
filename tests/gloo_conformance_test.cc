#include "allreduce/gloo_gradient_sync.h"
#include "tests/conformance_suite.h"

namespace gradsync {
namespace {

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

#else

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ConformanceTest);

#endif  // USE_C10D_GLOO

TEST(GlooTest, UpdateAtTheOwnersIsRefused) {
  const absl::Status status = CreateGlooGradientSync({WorkerGroup(), UpdateSite::kOwner}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace gradsync
