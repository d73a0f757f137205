#include "train/open_dataset.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(OpenDatasetTest, SyntheticNeedsNoFiles) {
  const auto train = OpenDataset("synthetic", Split::kTrain, 1);
  const auto test = OpenDataset("synthetic", Split::kTest, 1);
  ASSERT_TRUE(train.ok() && test.ok());
  EXPECT_EQ((*train)->size(), 50000);
  EXPECT_EQ((*test)->size(), 10000);
}

TEST(OpenDatasetTest, Cifar10ErrorsNameTheDirectory) {
  const auto dataset = OpenDataset("cifar10:/no/such/place", Split::kTrain);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr("/no/such/place"));
}

TEST(OpenDatasetTest, UnknownSpecListsWhatExists) {
  for (const char* spec : {"", "mnist", "cifar10", "cifar10:", "synthetic:", "CIFAR10:/x"}) {
    const auto dataset = OpenDataset(spec, Split::kTrain);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(dataset.status().message(), HasSubstr("synthetic or cifar10:DIR")) << spec;
  }
}

}  // namespace
}  // namespace gradsync
