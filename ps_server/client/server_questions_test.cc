#include "ps_server/client/server_questions.h"

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/group/process_trace.h"
#include "core/links/in_process_stream.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "proto/step_trace.pb.h"

namespace gradsync {
namespace {

// Answers every first frame with one of its own.
class Answerer : public FrameSink {
 public:
  Answerer(std::shared_ptr<FrameStream> stream, proto::FrameHeader answer, std::string payload)
      : stream_(std::move(stream)),
        answer_(std::move(answer)),
        payload_(std::make_shared<const std::string>(std::move(payload))) {}

  void OnFrame(const proto::FrameHeader&, Payload) override {
    OutgoingFrame frame;
    frame.header = answer_;
    frame.payload = absl::MakeConstSpan(payload_->data(), payload_->size());
    frame.released = [payload = payload_] {};
    stream_->Send(std::move(frame));
    stream_->Finish();
  }
  void OnClosed(absl::Status) override {}

 private:
  const std::shared_ptr<FrameStream> stream_;
  const proto::FrameHeader answer_;
  const std::shared_ptr<const std::string> payload_;
};

absl::StatusOr<std::vector<std::string>> AskOneThatAnswers(const proto::FrameHeader& answer,
                                                           const std::string& payload) {
  const std::shared_ptr<StreamLink> link = NewInProcessLink();
  const auto listener =
      link->Listen("127.0.0.1:0", [answer, payload](std::shared_ptr<FrameStream> stream) {
        return std::make_shared<Answerer>(std::move(stream), answer, payload);
      });
  return AskServerHosts(*link, {(*listener)->address()}, Deadline::In(absl::Seconds(30)),
                        /*failure_timeout=*/absl::Seconds(10));
}

TEST(ServerHostsTest, TheKeyThatAServerTellsIsReturned) {
  proto::FrameHeader answer;
  answer.set_kind(proto::FrameHeader::HOST);
  proto::Host host;
  host.set_key("a host");
  const auto hosts = AskOneThatAnswers(answer, host.SerializeAsString());
  ASSERT_TRUE(hosts.ok()) << hosts.status();
  EXPECT_EQ(*hosts, std::vector<std::string>{"a host"});
}

// Rank 0 aborted: a FAILED frame whose code was OK became the status of a StatusOr.
TEST(ServerHostsTest, AServerThatFailsWithTheCodeOkIsAnErrorThatNamesIt) {
  proto::FrameHeader answer;
  answer.set_kind(proto::FrameHeader::FAILED);
  const auto hosts = AskOneThatAnswers(answer, "");
  EXPECT_EQ(hosts.status().code(), absl::StatusCode::kUnknown) << hosts.status();
  EXPECT_TRUE(absl::StrContains(hosts.status().message(), "server 0")) << hosts.status();
}

TEST(ServerHostsTest, AnAnswerThatIsNoneIsRefused) {
  proto::FrameHeader answer;
  answer.set_kind(proto::FrameHeader::GOODBYE);
  const auto hosts = AskOneThatAnswers(answer, "");
  EXPECT_EQ(hosts.status().code(), absl::StatusCode::kInvalidArgument) << hosts.status();
}

// Rank 0 without descriptors kept the whole job waiting for as long as servers may take to come.
TEST(ServerHostsTest, AProcessWithoutDescriptorsSaysSoAndBlamesNoServer) {
  const auto link = NewInProcessLink();
  absl::StatusOr<std::vector<std::string>> hosts;
  {
    const NoDescriptorsLeft none;
    hosts = AskServerHosts(*link, {"127.0.0.1:1"}, Deadline::In(absl::Minutes(5)),
                           /*failure_timeout=*/absl::Milliseconds(100));
  }
  EXPECT_EQ(hosts.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StartsWith(hosts.status().message(),
                               "no connection to server 0 (127.0.0.1:1): no file descriptors left"))
      << hosts.status();
}

constexpr int64_t kFiveSeconds = 5000000000;

// A server's answer, whose clock is called so and is 5 s ahead of this process'.
std::string AnswerTo(const OutgoingFrame& question, const std::string& clock) {
  proto::ProcessTrace trace;
  trace.set_clock(clock);
  trace.set_now_ns(ClockNow() + kFiveSeconds);
  if (question.header.count() > 0) trace.set_name("server 0");
  return trace.SerializeAsString();
}

// What is there after the last answer.
proto::ProcessTrace AskAll(const std::string& clock) {
  ServerClock server;
  for (int questions = 1; questions < 100; ++questions) {
    const auto trace = server.Answer(AnswerTo(server.Ask(), clock));
    EXPECT_TRUE(trace.ok()) << trace.status();
    if (!trace.ok() || !trace->has_value()) continue;
    EXPECT_GT(questions, 1);
    proto::ProcessTrace whole;
    EXPECT_TRUE(whole.ParseFromString(**trace));
    return whole;
  }
  ADD_FAILURE() << "it asks for ever";
  return {};
}

TEST(ServerClockTest, FindsAnotherClockWithinItsBound) {
  const proto::ProcessTrace trace = AskAll("another");
  EXPECT_EQ(trace.name(), "server 0");
  EXPECT_GT(trace.error_ns(), 0);
  EXPECT_LE(std::abs(trace.offset_ns() + kFiveSeconds), trace.error_ns());
}

TEST(ServerClockTest, TheSameClockIsNotShifted) {
  const proto::ProcessTrace trace = AskAll(ClockName());
  EXPECT_EQ(trace.offset_ns(), 0);
  EXPECT_EQ(trace.error_ns(), 0);
}

TEST(ServerClockTest, WhatWasNotAskedForIsRefused) {
  ServerClock server;
  EXPECT_FALSE(server.Answer("").ok());
  server.Ask();
  EXPECT_FALSE(server.Answer("\xff").ok());
}

}  // namespace
}  // namespace gradsync
