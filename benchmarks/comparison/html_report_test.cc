#include "benchmarks/comparison/html_report.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::Eq;
using ::testing::HasSubstr;

// Scripts of one line stand in for the tool, which has tests of its own.
class HtmlReportTest : public ::testing::Test {
 protected:
  HtmlReportTest() : folder_(::testing::TempDir() + "/html_report_test-XXXXXX") {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }
  ~HtmlReportTest() override { std::filesystem::remove_all(folder_); }

  std::string Tool(const std::string& script) {
    std::ofstream(folder_ + "/tool.py") << "import sys\n" << script << "\n";
    return folder_ + "/tool.py";
  }

  std::string folder_;
};

TEST_F(HtmlReportTest, TheToolIsToldWhatToReadAndWhatToWrite) {
  const std::string tool = Tool("open(sys.argv[2][6:], 'w').write(sys.argv[1])");
  const absl::Status status = WriteHtmlReport(tool, "in.json", folder_ + "/out.html");
  EXPECT_TRUE(status.ok()) << status;
  std::string text;
  std::ifstream(folder_ + "/out.html") >> text;
  EXPECT_EQ(text, "in.json");
}

TEST_F(HtmlReportTest, WhatTheToolSaysIsTheError) {
  const std::string tool =
      Tool("print('report: needs python3-matplotlib', file=sys.stderr); sys.exit(2)");
  const absl::Status status = WriteHtmlReport(tool, "in.json", folder_ + "/out.html");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), Eq("needs python3-matplotlib"));
}

TEST_F(HtmlReportTest, AToolThatFailsSilentlyIsNamed) {
  const std::string tool = Tool("sys.exit(3)");
  const absl::Status status = WriteHtmlReport(tool, "in.json", folder_ + "/out.html");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("exit code 3"));
}

}  // namespace
}  // namespace gradsync
