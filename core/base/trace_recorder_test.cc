#include "core/base/trace_recorder.h"

#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(TraceRecorderTest, KeepsTheStepsOfItsWindowOnly) {
  TraceRecorder recorder(3, 4);
  for (int64_t step = 1; step <= 6; ++step) RecordedSpan(&recorder, TraceSpan::kForward, step);
  const std::vector<TraceEvent> events = recorder.Take();
  ASSERT_THAT(events, SizeIs(2));
  EXPECT_EQ(events[0].step, 3);
  EXPECT_EQ(events[1].step, 4);
  EXPECT_LE(events[0].begin, events[0].end);
  EXPECT_THAT(recorder.Take(), IsEmpty());
}

TEST(TraceRecorderTest, WithoutOneNothingIsRecorded) {
  EXPECT_FALSE(Records(nullptr, 1));
  RecordedSpan span(nullptr, TraceSpan::kFold, 1);
}

TEST(TraceRecorderTest, CountsWhatItDrops) {
  TraceRecorder recorder(1, 1);
  TraceEvent event;
  event.step = 1;
  for (size_t i = 0; i < TraceRecorder::kMostEvents + 5; ++i) recorder.Add(event);
  EXPECT_EQ(recorder.dropped(), 5);
  EXPECT_THAT(recorder.Take(), SizeIs(TraceRecorder::kMostEvents));
}

TEST(TraceRecorderTest, ThreadsMayAddTogether) {
  TraceRecorder recorder(1, 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&recorder] {
      for (int j = 0; j < 1000; ++j) RecordedSpan(&recorder, TraceSpan::kFold, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(recorder.Take(), SizeIs(4000));
}

}  // namespace
}  // namespace gradsync
