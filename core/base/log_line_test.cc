#include "core/base/log_line.h"

#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

LogSource Worker() {
  LogSource source;
  source.program = "worker";
  source.rank = 3;
  source.step = 0;
  source.time = absl::FromUnixMillis(1700000000042);
  return source;
}

TEST(LogLineTest, TextIsProgramAndMessage) {
  EXPECT_EQ(LogLine(LogFormat::kText, Worker(), Severity::kError, "it \"broke\"\n"),
            "worker: it \"broke\"\\n");
}

// A peer could write lines of its own into another's log, and colours and titles into its terminal.
TEST(LogLineTest, WhatAPeerSaidStaysOnItsLineAndMovesNoCursor) {
  const auto text = [](const std::string& bytes) {
    return LogLine(LogFormat::kText, Worker(), Severity::kError, bytes);
  };
  EXPECT_EQ(text("lost\nworker: all is well\r\t"), "worker: lost\\nworker: all is well\\r\\t");
  EXPECT_EQ(text("\x1b[2Jgone\x07\x7f"), "worker: \\x1b[2Jgone\\x07\\x7f");
  EXPECT_EQ(text(std::string("a\0b", 3)), "worker: a\\x00b");
  EXPECT_EQ(text("\xc2\x9b"
                 "2J"),
            "worker: \\xc2\\x9b2J");
  EXPECT_EQ(text("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \\ \xc2\xa0."),
            "worker: gr\xc3\xbc\xc3\x9f \xe2\x82\xac \\ \xc2\xa0.");
  EXPECT_EQ(text("\xff\xe2\x82"), "worker: \\xff\\xe2\\x82");
}

TEST(LogLineTest, JsonHasWhoWhenAndWhereAsFarAsTheyAreKnown) {
  EXPECT_EQ(LogLine(LogFormat::kJson, Worker(), Severity::kError, "it broke"),
            R"({"time":"2023-11-14T22:13:20.042Z","severity":"ERROR","program":"worker",)"
            R"("rank":3,"step":0,"message":"it broke"})");
  LogSource server;
  server.program = "ps_server";
  server.server = 0;
  server.time = absl::UnixEpoch();
  EXPECT_EQ(LogLine(LogFormat::kJson, server, Severity::kInfo, ""),
            R"({"time":"1970-01-01T00:00:00.000Z","severity":"INFO","program":"ps_server",)"
            R"("server":0,"message":""})");
}

TEST(LogLineTest, JsonStaysJsonWhateverAPeerSaid) {
  const auto message = [](const std::string& bytes) {
    LogSource source;
    const std::string line = LogLine(LogFormat::kJson, source, Severity::kWarning, bytes);
    const size_t begin = line.find("\"message\":") + 10;
    return line.substr(begin, line.size() - begin - 1);
  };
  EXPECT_EQ(message("a\"\\\n\x01"), R"("a\"\\\u000a\u0001")");
  EXPECT_EQ(message(std::string(1, '\0')), R"("\u0000")");
  EXPECT_EQ(message("\x7f\xc2\x9b\xc2\xa0"), "\"\\u007f\\u009b\xc2\xa0\"");
  EXPECT_EQ(message("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80\"");
  // Cut off, a lone continuation, too long a form, a surrogate, beyond the last character.
  for (const char* bytes : {"\xc3", "\x80", "\xff"}) EXPECT_EQ(message(bytes), R"("\ufffd")");
  EXPECT_EQ(message("\xc0\xaf"), R"("\ufffd\ufffd")");
  EXPECT_EQ(message("\xed\xa0\x80"), R"("\ufffd\ufffd\ufffd")");
  EXPECT_EQ(message("\xf4\x90\x80\x80"), R"("\ufffd\ufffd\ufffd\ufffd")");
  EXPECT_EQ(message("\xe2\x82x"), R"("\ufffd\ufffdx")");
}

// A message of a few kinds of bytes, as text and as it comes back from JSON.
TEST(LogLineTest, AJsonLineIsReadAsTheTextThatItWouldBe) {
  for (const char* message : {"", "ABORTED: rank 1 lost: it \"broke\"", "a\\b\n\t\x01 \x7f\xc2\x9b",
                              "gr\xc3\xbc\xc3\x9f \xef\xbf\xbd", "{\"message\":\"no\"}"}) {
    const auto in = [message](LogFormat format) {
      return LogLine(format, Worker(), Severity::kInfo, message);
    };
    EXPECT_EQ(AsTextLine(in(LogFormat::kJson)), in(LogFormat::kText));
    EXPECT_EQ(AsTextLine(in(LogFormat::kText)), in(LogFormat::kText));
  }
  const std::string bytes = LogLine(LogFormat::kJson, Worker(), Severity::kError, "\xff");
  EXPECT_EQ(AsTextLine(bytes), "worker: \xef\xbf\xbd");
}

TEST(LogLineTest, WhatIsNoLineOfALogStaysWhatItIs) {
  const std::string line = LogLine(LogFormat::kJson, Worker(), Severity::kError, "a \\ \x01");
  for (size_t size = 0; size < line.size(); ++size) {
    EXPECT_EQ(AsTextLine(line.substr(0, size)), line.substr(0, size));
  }
  for (const char* other : {R"({"time":1,"message":"hello"})", R"({"message":"hello"})", "{}",
                            R"({"time":"","program":"a","message":"\uzzzz"})",
                            R"({"time":"","program":"a","message":"b"} )"}) {
    EXPECT_EQ(AsTextLine(other), other);
  }
}

}  // namespace
}  // namespace gradsync
