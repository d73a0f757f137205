#include "benchmarks/ranks/rank_main.h"

#include <fstream>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "benchmarks/ranks/rank_spec.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(RankMainTest, ARankMeetsTheOthersAsItsFlagsAndItsSpecSay) {
  absl::SetFlag(&FLAGS_rank, 2);
  absl::SetFlag(&FLAGS_world_size, 5);
  absl::SetFlag(&FLAGS_master, "10.0.0.1:7000");
  const std::string port_file = testing::TempDir() + "/port";
  absl::SetFlag(&FLAGS_port_file, port_file);
  proto::RankSpec spec;
  spec.set_timeout_seconds(9);
  const MeetOptions options = MeetFromFlags("a_bench", spec);
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

TEST(RankMainTest, TheSpecIsTheFileThatTheBenchmarkWrote) {
  proto::RankSpec spec;
  spec.mutable_exchange()->set_bytes(int64_t{5} << 40);
  const std::unique_ptr<RankFiles> files = RankFiles::Create(spec, absl::Seconds(7)).value();
  const std::string path(absl::StripPrefix(files->flag(), "--spec="));
  absl::SetFlag(&FLAGS_spec, path);
  const absl::StatusOr<proto::RankSpec> read = SpecFromFlags(proto::RankSpec::kExchange);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->exchange().bytes(), int64_t{5} << 40);
  EXPECT_EQ(read->timeout_seconds(), 7);
  absl::SetFlag(&FLAGS_world_size, 1);
  EXPECT_EQ((*OpenStartLine(*read))(), absl::OkStatus());
  EXPECT_EQ(SpecFromFlags(proto::RankSpec::kTcpFlows).status(),
            absl::InvalidArgumentError("--spec: expected a file with \"tcp_flows\", found \"" +
                                       path + "\""));
}

TEST(RankMainTest, ASpecThatIsNotThereIsNamed) {
  absl::SetFlag(&FLAGS_spec, "/nowhere/spec.json");
  const absl::Status status = SpecFromFlags(proto::RankSpec::kExchange).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "/nowhere/spec.json")) << status;
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
