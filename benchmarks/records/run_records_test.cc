#include "benchmarks/records/run_records.h"

#include <fstream>
#include <sstream>
#include <string>

#include "benchmarks/records/proto_json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(RunRecordsTest, TheLastRecordsReplaceThoseBefore) {
  const std::string path = testing::TempDir() + "/records.json";
  proto::RunRecords records;
  ASSERT_TRUE(WriteRecords(path, records).ok());
  records.add_runs()->set_topology("ps");
  ASSERT_TRUE(WriteRecords(path, records).ok());
  EXPECT_EQ(ReadFile(path), ToJson(records).value());
}

TEST(RunRecordsTest, WithoutAPathThereIsNoFile) {
  EXPECT_TRUE(WriteRecords("", proto::RunRecords()).ok());
}

TEST(RunRecordsTest, APathThatCannotBeWrittenIsAWrongFlag) {
  const std::string path = testing::TempDir() + "/no/such/folder/records.json";
  const absl::Status status = WriteRecords(path, proto::RunRecords());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("--json: "), HasSubstr("no/such/folder")));
}

}  // namespace
}  // namespace gradsync
