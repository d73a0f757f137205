#include "worker/gather_trace.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/trace_recorder.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "gtest/gtest.h"
#include "proto/step_trace.pb.h"

namespace gradsync {
namespace {

// Rank 0's, of a group whose ranks are threads with clocks of these names.
absl::StatusOr<std::vector<proto::ProcessTrace>> Gather(const std::vector<std::string>& clocks) {
  WorkerGroup group;
  group.world_size = static_cast<int>(clocks.size());
  group.run_id = "run";
  group.store = NewInMemoryStore();
  const Deadline deadline = Deadline::In(absl::Seconds(20));
  std::vector<absl::StatusOr<std::vector<proto::ProcessTrace>>> gathered(clocks.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.world_size; ++rank) {
    WorkerGroup own = group;
    own.rank = rank;
    own.recorder = std::make_shared<TraceRecorder>(1, 1);
    TraceEvent event;
    event.what = TraceSpan::kForward;
    event.step = 1;
    for (int i = 0; i <= rank; ++i) own.recorder->Add(event);
    if (rank == 0) {
      proto::ProcessTrace server;
      server.set_process(group.world_size);
      server.set_name("server 0");
      own.recorder->AddProcess(server.SerializeAsString());
    }
    threads.emplace_back([own, rank, deadline, &gathered, &clocks] {
      gathered[rank] = GatherTraces(own, clocks[rank], deadline);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < group.world_size; ++rank) {
    EXPECT_TRUE(gathered[rank].ok()) << gathered[rank].status();
  }
  return gathered[0];
}

TEST(GatherTraceTest, BringsAllProcessesToRank0InTheirOrder) {
  const auto traces = Gather({"a", "a", "a"});
  ASSERT_TRUE(traces.ok()) << traces.status();
  ASSERT_EQ(traces->size(), 4);
  for (int process = 0; process < 4; ++process) EXPECT_EQ((*traces)[process].process(), process);
  EXPECT_EQ((*traces)[2].name(), "worker 2");
  EXPECT_EQ((*traces)[2].what_size(), 3);
  EXPECT_EQ((*traces)[2].error_ns(), 0);
  EXPECT_EQ((*traces)[3].name(), "server 0");
}

// All of them read the same clock here, so what is found must be no more than its bound from 0.
TEST(GatherTraceTest, AnotherClockIsShiftedWithinItsBound) {
  const auto traces = Gather({"a", "b", "a", "c"});
  ASSERT_TRUE(traces.ok()) << traces.status();
  for (int rank : {1, 3}) {
    const proto::ProcessTrace& trace = (*traces)[rank];
    EXPECT_GT(trace.error_ns(), 0);
    EXPECT_LE(std::abs(trace.offset_ns()), trace.error_ns());
  }
  EXPECT_EQ((*traces)[2].error_ns(), 0);
}

}  // namespace
}  // namespace gradsync
