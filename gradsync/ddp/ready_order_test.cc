#include "gradsync/ddp/ready_order.h"

#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/rand.h"
#include "gmock/gmock.h"
#include "gradsync/ddp/tiny_module.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ReadyOrderTest, GradientsAreListedAsBackwardCompletesThem) {
  TinyModule module;
  const auto order = ObserveReadyOrder(module, [&] {
                       module.Loss(at::ones({2, 4})).backward();
                     }).value();
  ASSERT_EQ(order.size(), 4u);
  EXPECT_EQ(order[0], 3);  // last_weight
  EXPECT_EQ(order[1], 2);  // scale
}

TEST(ReadyOrderTest, BuffersGradientsAndRandomStateAreRestored) {
  TinyModule module;
  module.scale.mutable_grad() = at::ones({8});
  const at::Tensor scale_grad = module.scale.grad();
  at::rand({1});
  const at::Tensor random_before = at::detail::getDefaultCPUGenerator().get_state();
  ASSERT_TRUE(ObserveReadyOrder(module, [&] { module.Loss(at::rand({2, 4})).backward(); }).ok());
  EXPECT_EQ(module.forwards.item<float>(), 0);
  EXPECT_TRUE(module.scale.grad().is_same(scale_grad));
  EXPECT_TRUE(scale_grad.equal(at::ones({8})));
  EXPECT_FALSE(module.first_weight.grad().defined());
  EXPECT_TRUE(at::detail::getDefaultCPUGenerator().get_state().equal(random_before));
}

TEST(ReadyOrderTest, UnusedParametersAreNamed) {
  TinyModule module;
  const absl::Status status = ObserveReadyOrder(module, [&] {
                                (module.first_weight.sum() + module.last_weight.sum()).backward();
                              }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("first_bias, scale"), Not(HasSubstr("last_weight"))));
}

TEST(ReadyOrderTest, UnusedParametersComeLastWhereTheyAreAllowed) {
  TinyModule module;
  const auto order = ObserveReadyOrder(
      module, [&] { module.last_weight.sum().backward(); }, /*allow_unused=*/true);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_THAT(*order, ElementsAre(3, 2, 1, 0));
}

TEST(ReadyOrderTest, ASecondBackwardIsRefusedByName) {
  TinyModule module;
  const absl::Status status = ObserveReadyOrder(module, [&] {
                                module.Loss(at::ones({2, 4})).backward();
                                module.scale.sum().backward();
                              }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("several for scale"));
}

TEST(ReadyOrderTest, AnExceptionOfTheUsersBecomesAStatusAndStateIsRestored) {
  TinyModule module;
  const absl::Status status = ObserveReadyOrder(module, [&] {
                                module.Loss(at::ones({2, 4})).backward();
                                std::vector<int>().at(7);  // throws
                              }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("threw"));
  EXPECT_EQ(module.forwards.item<float>(), 0);
}

}  // namespace
}  // namespace gradsync
