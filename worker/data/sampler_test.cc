#include "worker/data/sampler.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TEST(SamplerTest, OrdersHaveNames) {
  for (const SampleOrder order : {SampleOrder::kOwn, SampleOrder::kPytorch}) {
    EXPECT_EQ(ParseSampleOrder(SampleOrderName(order)).value(), order);
  }
  EXPECT_THAT(ParseSampleOrder("torch").status().message(),
              HasSubstr("--sampler: expected gradsync or pytorch, found \"torch\""));
}

TEST(SamplerTest, ASamplerHasItsOptionsSamples) {
  SamplerOptions options;
  EXPECT_FALSE(RankSampler::Create(options).ok());
  options.dataset_size = 10;
  options.world_size = 3;
  options.rank = 1;
  const RankSampler sampler = RankSampler::Create(options).value();
  EXPECT_EQ(sampler.samples_per_rank(), 4);
  EXPECT_EQ(sampler.Indices(2), SamplesOfEpoch(options, 2));
}

}  // namespace
}  // namespace gradsync
