#include "benchmarks/comparison/followed_flags.h"

#include "core/plan/stripes.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

CompareOptions With(const std::vector<std::string>& flags) {
  CompareOptions options;
  options.worker_flags = flags;
  return options;
}

TEST(FollowedFlagsTest, WithoutFlagsAJobHasItsDefaults) {
  const absl::StatusOr<FollowedFlags> followed = FollowFlags(With({}));
  ASSERT_TRUE(followed.ok()) << followed.status();
  PredictedJob job;
  job.placed.bandwidth = "400mbit";
  followed->ApplyTo(&job);
  EXPECT_EQ(job.bucket_bytes, PredictedJob().bucket_bytes);
  EXPECT_EQ(job.first_bucket_bytes, PredictedJob().first_bucket_bytes);
  EXPECT_EQ(job.chunk_bytes, kNetworkChunks);
  EXPECT_EQ(job.placed.spec.connections, 0);
  EXPECT_THAT(followed->recorded, ElementsAre());
}

// They were ignored, and predictions were of another job.
TEST(FollowedFlagsTest, SizesAndConnectionsAreThoseOfTheWorkers) {
  const absl::StatusOr<FollowedFlags> followed =
      FollowFlags(With({"--bucket_bytes=4MiB", "-first_bucket_bytes=2MiB", "--chunk_bytes=256KiB",
                        "--connections=3", "--chunk_bytes=128KiB"}));
  ASSERT_TRUE(followed.ok()) << followed.status();
  PredictedJob job;
  job.placed.bandwidth = "400mbit";
  followed->ApplyTo(&job);
  EXPECT_EQ(job.bucket_bytes, 4 << 20);
  EXPECT_EQ(job.first_bucket_bytes, 2 << 20);
  EXPECT_EQ(job.chunk_bytes, 128 << 10);
  EXPECT_EQ(job.placed.spec.connections, 3);
}

TEST(FollowedFlagsTest, AStepIsRecordedAsWorkersCompute) {
  CompareOptions options = With({"--gpt_layers=3", "--evaluate", "--weight_decay=0"});
  options.compute.precision = Precision::kBf16;
  options.compute.channels_last = true;
  const absl::StatusOr<FollowedFlags> followed = FollowFlags(options);
  ASSERT_TRUE(followed.ok()) << followed.status();
  EXPECT_THAT(followed->recorded,
              ElementsAre("--precision=bf16", "--channels_last", "--gpt_layers=3"));
}

TEST(FollowedFlagsTest, OtherFlagsAreNotPredicted) {
  const auto message = [](const std::string& flag) {
    return std::string(FollowFlags(With({flag})).status().message());
  };
  for (const char* flag : {"--accumulate=4", "--activation_checkpointing", "--optimizer=adam",
                           "--config=job.txt", "--server_weights=1,2"}) {
    EXPECT_THAT(message(flag), HasSubstr(flag));
  }
  EXPECT_THAT(message("--bucket_bytes=x"), HasSubstr("--bucket_bytes"));
  EXPECT_THAT(message("--connections"), HasSubstr("--connections: expected a number"));
}

}  // namespace
}  // namespace gradsync
