#include "worker/data/open_dataset.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

DatasetOptions Seeded(uint64_t seed) {
  DatasetOptions options;
  options.seed = seed;
  return options;
}

using ::testing::HasSubstr;

TEST(OpenDatasetTest, SyntheticNeedsNoFiles) {
  const auto train = OpenDataset("synthetic", Split::kTrain, Seeded(1));
  const auto test = OpenDataset("synthetic", Split::kTest, Seeded(1));
  ASSERT_TRUE(train.ok() && test.ok());
  EXPECT_EQ((*train)->size(), 50000);
  EXPECT_EQ((*test)->size(), 10000);
}

TEST(OpenDatasetTest, SyntheticImagesHaveTheSizeThatIsAskedFor) {
  const auto train = OpenDataset("synthetic:224", Split::kTrain, Seeded(1));
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->shape().height, 224);
  EXPECT_EQ((*train)->shape().width, 224);
  std::vector<uint8_t> pixels((*train)->shape().bytes());
  ASSERT_TRUE((*train)->Get(49999, absl::MakeSpan(pixels)).ok());
  EXPECT_NE(pixels.front(), pixels.back());
  for (const char* spec :
       {"synthetic:7", "synthetic:33", "synthetic:1026", "synthetic:-8", "synthetic:big"}) {
    EXPECT_THAT(std::string(OpenDataset(spec, Split::kTrain).status().message()),
                HasSubstr("an even number from 8 to 1024"))
        << spec;
  }
}

TEST(OpenDatasetTest, Cifar10ErrorsNameTheDirectory) {
  const auto dataset = OpenDataset("cifar10:/no/such/place", Split::kTrain);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr("/no/such/place"));
}

TEST(OpenDatasetTest, UnknownSpecListsWhatExists) {
  for (const char* spec :
       {"", "mnist", "cifar10", "cifar10:", "synthetic:", "imagefolder:", "CIFAR10:/x"}) {
    const auto dataset = OpenDataset(spec, Split::kTrain);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(dataset.status().message(),
                HasSubstr("synthetic, synthetic:PIXELS, cifar10:DIR or imagefolder:DIR"))
        << spec;
  }
}

}  // namespace
}  // namespace gradsync
