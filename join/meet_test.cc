#include "join/meet.h"

#include <future>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "group/heartbeat.h"
#include "group/liveness.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// A rank that was stopped between its arrival and its heartbeat's first beat was never missed.
TEST(MeetTest, WhoHasMetHasGivenASignOfLife) {
  for (int i = 0; i < 20; ++i) {
    std::promise<std::string> store;
    const auto meet = [&store](int rank, const std::string& master) {
      MeetOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.master = master;
      options.on_store = [&store](const std::string& address) {
        store.set_value(address);
        return absl::OkStatus();
      };
      absl::StatusOr<Meeting> meeting = Meet(options);
      ASSERT_TRUE(meeting.ok()) << meeting.status();
      const WorkerGroup& group = meeting->group();
      const absl::StatusOr<std::string> beat =
          group.store->Get(RankBeatKey(group.Key(""), rank), Deadline::Now());
      ASSERT_TRUE(beat.ok()) << beat.status();
      EXPECT_TRUE(Beat::Parse(*beat).has_value()) << *beat;
      EXPECT_EQ(meeting->Leave(), absl::OkStatus());
    };
    std::thread other([&] { meet(1, store.get_future().get()); });
    meet(0, "127.0.0.1:0");
    other.join();
  }
}

}  // namespace
}  // namespace gradsync
