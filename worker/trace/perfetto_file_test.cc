#include "worker/trace/perfetto_file.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/trace_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/step_trace.pb.h"
#include "worker/trace/trace_reader.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

proto::ProcessTrace Process(int number, const std::string& name) {
  proto::ProcessTrace trace;
  trace.set_process(number);
  trace.set_name(name);
  return trace;
}

void Add(TraceSpan what, int64_t begin, int64_t end, proto::ProcessTrace* trace, int slot = 0,
         int peer = -1) {
  trace->add_what(static_cast<int>(what));
  trace->add_way(static_cast<int>(peer < 0 ? ChunkWay::kNone : ChunkWay::kThere));
  trace->add_bucket(0);
  trace->add_slot(slot);
  trace->add_peer(peer);
  trace->add_step(7);
  trace->add_begin_ns(begin);
  trace->add_length_ns(end - begin);
  trace->add_bytes(0);
}

// Only slices: each process has an instant "clock" besides.
std::vector<ReadSlice> Read(const std::vector<proto::ProcessTrace>& processes) {
  absl::StatusOr<std::vector<ReadSlice>> slices = ReadTrace(PerfettoFile(processes));
  EXPECT_TRUE(slices.ok()) << slices.status();
  if (!slices.ok()) return {};
  slices->erase(std::remove_if(slices->begin(), slices->end(),
                               [](const ReadSlice& slice) { return slice.name == "clock"; }),
                slices->end());
  return *std::move(slices);
}

std::vector<std::string> LanesOf(const std::vector<ReadSlice>& slices) {
  std::vector<std::string> lanes;
  for (const ReadSlice& slice : slices) lanes.push_back(slice.lane);
  return lanes;
}

TEST(PerfettoFileTest, NothingRecordedIsATraceToo) {
  EXPECT_THAT(Read({}), IsEmpty());
  EXPECT_THAT(Read({Process(0, "worker 0")}), IsEmpty());
}

TEST(PerfettoFileTest, WhatOverlapsIsInLanesOfItsOwn) {
  proto::ProcessTrace worker = Process(0, "worker 0");
  Add(TraceSpan::kBucket, 10, 30, &worker);
  Add(TraceSpan::kBucket, 20, 40, &worker);
  Add(TraceSpan::kBucket, 30, 35, &worker);  // after the first: a lane is used again
  EXPECT_THAT(LanesOf(Read({worker})), ElementsAre("buckets", "buckets (2)", "buckets"));
}

TEST(PerfettoFileTest, TimesAreRank0sClock) {
  proto::ProcessTrace worker = Process(1, "worker 1");
  worker.set_offset_ns(1000);
  Add(TraceSpan::kForward, 10, 30, &worker);
  const std::vector<ReadSlice> slices = Read({worker});
  ASSERT_THAT(slices, SizeIs(1));
  EXPECT_EQ(slices[0].begin, 1010);
  EXPECT_EQ(slices[0].end, 1030);
  EXPECT_EQ(slices[0].step, 7);
}

// Two chunks that were sent together come one after the other, and each has an arrow of its own.
TEST(PerfettoFileTest, AChunkIsDrawnAtBothEnds) {
  proto::ProcessTrace sender = Process(0, "worker 0"), receiver = Process(1, "server 0");
  Add(TraceSpan::kSend, 10, 22, &sender, /*slot=*/0, /*peer=*/1);
  Add(TraceSpan::kSend, 11, 33, &sender, /*slot=*/1, /*peer=*/1);
  Add(TraceSpan::kReceive, 20, 20, &receiver, /*slot=*/0, /*peer=*/0);
  Add(TraceSpan::kReceive, 30, 30, &receiver, /*slot=*/1, /*peer=*/0);
  const std::vector<ReadSlice> slices = Read({sender, receiver});
  EXPECT_THAT(LanesOf(slices),
              ElementsAre("to server 0", "to server 0 (2)", "from worker 0", "from worker 0"));
  ASSERT_THAT(slices, SizeIs(4));
  EXPECT_EQ(slices[2].begin, 10);
  EXPECT_EQ(slices[2].end, 20);
  EXPECT_EQ(slices[3].begin, 20);
  EXPECT_EQ(slices[3].end, 30);
  EXPECT_NE(slices[0].flow, slices[1].flow);
  EXPECT_EQ(slices[0].flow, slices[2].flow);
  EXPECT_EQ(slices[1].flow, slices[3].flow);
}

TEST(PerfettoFileTest, PredictedProcessesHaveArrowsOfTheirOwn) {
  proto::ProcessTrace sender = Process(0, "worker 0"), receiver = Process(1, "worker 1");
  Add(TraceSpan::kSend, 10, 20, &sender, 0, 1);
  receiver.set_predicted(true);
  Add(TraceSpan::kReceive, 30, 30, &receiver, 0, 0);
  const std::vector<ReadSlice> slices = Read({sender, receiver});
  ASSERT_THAT(slices, SizeIs(2));
  EXPECT_EQ(slices[1].flow, 0);
}

// A peer's message may be cut short.
TEST(PerfettoFileTest, AnEventThatLacksAColumnIsLeftOut) {
  proto::ProcessTrace worker = Process(0, "worker 0");
  Add(TraceSpan::kForward, 10, 30, &worker);
  worker.add_what(3);
  EXPECT_THAT(Read({worker}), SizeIs(1));
}

}  // namespace
}  // namespace gradsync
