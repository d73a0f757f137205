#include "benchmarks/records/proto_json.h"

#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/run_record.pb.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ProtoJsonTest, ZerosNullsAndFieldNamesAreWritten) {
  proto::Run run;
  run.set_topology("ps");
  run.mutable_busbw_gb_per_s()->set_null_value(google::protobuf::NULL_VALUE);
  const auto json = ToJson(run);
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_THAT(*json, AllOf(HasSubstr("\"topology\": \"ps\""), HasSubstr("\"samples_per_s\": 0"),
                           HasSubstr("\"busbw_gb_per_s\": null")));
}

TEST(ProtoJsonTest, WhatIsWrittenIsReadBackAndNewFieldsAreIgnored) {
  proto::Run run;
  run.set_workers(3);
  run.set_step_ms_p50(0.1);
  const auto json = ToJson(run);
  ASSERT_TRUE(json.ok());
  proto::Run read;
  ASSERT_TRUE(ParseJson(*json, "it", &read).ok());
  EXPECT_EQ(read.step_ms_p50(), 0.1);
  EXPECT_TRUE(ParseJson("{\"field_of_tomorrow\": 1}", "it", &read).ok());
}

TEST(ProtoJsonTest, WhatIsNoJsonIsDataLossWithItsName) {
  proto::Run run;
  for (const char* text : {"", "{\"workers\": \"three\"}", "{\"workers\": 1"}) {
    const absl::Status status = ParseJson(text, "metrics of worker 1", &run);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr("metrics of worker 1: expected JSON"));
  }
}

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
