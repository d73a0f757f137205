#include "benchmarks/ranks/rank_main.h"

#include <fstream>
#include <string>

#include "absl/flags/flag.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RankMainTest, ARankMeetsTheOthersAsItsFlagsSay) {
  absl::SetFlag(&FLAGS_rank, 2);
  absl::SetFlag(&FLAGS_world_size, 5);
  absl::SetFlag(&FLAGS_master, "10.0.0.1:7000");
  const std::string port_file = testing::TempDir() + "/port";
  absl::SetFlag(&FLAGS_port_file, port_file);
  absl::SetFlag(&FLAGS_timeout, absl::Seconds(9));
  const MeetOptions options = MeetFromFlags("a_bench");
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.world_size, 5);
  EXPECT_EQ(options.master, "10.0.0.1:7000");
  ASSERT_TRUE(options.on_store("10.0.0.1:7001").ok());
  std::ifstream file(port_file);
  std::string line;
  EXPECT_TRUE(std::getline(file, line));
  EXPECT_EQ(line, "10.0.0.1:7001");
  EXPECT_EQ(options.run_id, "a_bench");
  EXPECT_EQ(options.timeout, absl::Seconds(9));
}

TEST(RankMainTest, ABadFlagEndsWith2AndAllElseWith1AndALineThatNamesTheRank) {
  absl::SetFlag(&FLAGS_rank, 3);
  testing::internal::CaptureStderr();
  EXPECT_EQ(RankExitCode("a_bench", absl::OkStatus()), 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  EXPECT_EQ(RankExitCode("a_bench", absl::InvalidArgumentError("--link: no")), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "a_bench: rank 3: INVALID_ARGUMENT: --link: no\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(RankExitCode("a_bench", absl::UnavailableError("gone")), 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "a_bench: rank 3: UNAVAILABLE: gone\n");
}

}  // namespace
}  // namespace gradsync
