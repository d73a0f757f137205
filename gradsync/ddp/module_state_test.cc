#include "gradsync/ddp/module_state.h"

#include "gmock/gmock.h"
#include "gradsync/ddp/tiny_module.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

struct WithBuffers : torch::nn::Module {
  explicit WithBuffers(int64_t size) {
    mean = register_buffer("mean", at::randn({size, 2}).t());
    count = register_buffer("count", at::zeros({}, at::kLong));
    frozen = register_parameter("frozen", at::randn({3}), /*requires_grad=*/false);
    trained = register_parameter("trained", at::randn({3}));
  }
  at::Tensor mean, count, frozen, trained;
};

TEST(ModuleStateTest, ValuesOfAllTypesAndStridesArrive) {
  WithBuffers from(3), to(3);
  from.count.fill_(int64_t{1} << 40);
  ASSERT_TRUE(UnpackTensors(PackTensors(BuffersOf(from)), BuffersOf(to)).ok());
  EXPECT_TRUE(to.mean.equal(from.mean));
  EXPECT_EQ(to.count.item<int64_t>(), int64_t{1} << 40);
  EXPECT_FALSE(to.frozen.equal(from.frozen));
  ASSERT_TRUE(UnpackTensors(PackTensors(FrozenParametersOf(from)), FrozenParametersOf(to)).ok());
  EXPECT_TRUE(to.frozen.equal(from.frozen));
  EXPECT_FALSE(to.trained.equal(from.trained));
}

TEST(ModuleStateTest, DifferentBuffersAreRefusedWithTheDifference) {
  WithBuffers from(4), to(3);
  const absl::Status status = UnpackTensors(PackTensors(BuffersOf(from)), BuffersOf(to));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("mean Float [2,4]"));
}

TEST(ModuleStateTest, MissingBytesAreDataLossAndChangeNothing) {
  WithBuffers from(3), to(3);
  const at::Tensor before = to.mean.clone();
  const std::string packed = PackTensors(BuffersOf(from));
  const absl::Status status =
      UnpackTensors(absl::string_view(packed).substr(0, packed.size() - 1), BuffersOf(to));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(to.mean.equal(before));
  EXPECT_FALSE(UnpackTensors("", BuffersOf(to)).ok());
}

}  // namespace
}  // namespace gradsync
