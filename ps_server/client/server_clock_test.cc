#include "ps_server/client/server_clock.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/types/optional.h"
#include "core/group/process_trace.h"
#include "gtest/gtest.h"
#include "proto/step_trace.pb.h"

namespace gradsync {
namespace {

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
