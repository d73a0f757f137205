// Runs the program itself, with real workers.

#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/temporary_folder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"
#include "tools/test_program.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kProgram[] = "benchmarks/data_parallel";

TEST(DataParallelTest, ReplicasAndRanksAreMeasuredAndTheirBitsChecked) {
  const auto folder = TemporaryFolder::Create("data_parallel_test");
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string out = folder->path() + "/new/results";
  TestProgram program({kProgram, "--model=mlp", "--replicas=2", "--steps=3", "--warmup_steps=1",
                       "--rounds=2", "--out=" + out});
  EXPECT_TRUE(program.Finish(absl::Seconds(240)).ok()) << absl::StrJoin(program.err(), "\n");
  EXPECT_THAT(
      program.out(),
      AllOf(Contains(StartsWith("round 2/2  ring of 2 ranks: ")), Contains(HasSubstr("replicate")),
            Contains(StartsWith("2 replicas in one process")),
            Contains(AllOf(StartsWith("  speed: "), HasSubstr("a ring of 2 ranks"))),
            Contains(StartsWith("  bits: replicas ended with those of one process")),
            Contains("wrote " + out + "/data_parallel.json")));
  proto::RunRecords records;
  ASSERT_TRUE(ReadJson(out + "/data_parallel.json", &records).ok());
  ASSERT_EQ(records.runs_size(), 3);
  const proto::Run& replicas = records.runs(1);
  EXPECT_EQ(replicas.data_parallel(), 2);
  EXPECT_EQ(replicas.params_sha256(), records.runs(0).params_sha256());
  EXPECT_EQ(replicas.round_step_ms_p50_size(), 2);
  EXPECT_GT(replicas.apply_ms_p50(), 0);
  EXPECT_GT(replicas.device0_tx_bytes(), 0);
  EXPECT_EQ(records.runs(2).workers(), 2);
}

TEST(DataParallelTest, BadFlagsEndBeforeAnyJob) {
  TestProgram program({kProgram, "--replicas=1"});
  EXPECT_EQ(program.Finish().code, 2);
  EXPECT_THAT(program.err(), ElementsAre(HasSubstr("--replicas: expected at least 2, found")));
  TestProgram nowhere({kProgram, "--model=mlp", "--out=/proc/no"});
  EXPECT_EQ(nowhere.Finish().code, 2);
  EXPECT_THAT(nowhere.err(), ElementsAre(HasSubstr("--out: expected a folder")));
}

}  // namespace
}  // namespace gradsync
