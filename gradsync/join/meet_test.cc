#include "gradsync/join/meet.h"

#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/group/heartbeat.h"
#include "core/group/liveness.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// A rank that was stopped between its arrival and its heartbeat's first beat was never missed.
TEST(MeetTest, WhoHasMetHasGivenASignOfLife) {
  for (int i = 0; i < 20; ++i) {
    std::promise<std::string> store;
    const auto meet = [&store](int rank, const std::string& master) {
      MeetOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.master = master;
      std::string told;
      options.on_store = [&](const std::string& address) {
        store.set_value(told = address);
        return absl::OkStatus();
      };
      absl::StatusOr<Meeting> meeting = Meet(options);
      ASSERT_TRUE(meeting.ok()) << meeting.status();
      const WorkerGroup& group = meeting->group();
      EXPECT_EQ(group.store_address, rank == 0 ? told : master);
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

// It waited for a connection to itself, unwatched, and everybody else for it.
TEST(MeetTest, RankZeroNeedsNoDescriptorForItsOwnStoreAndEndsTheJobWithoutAny) {
  MeetOptions options;
  options.world_size = 2;
  options.master = "127.0.0.1:0";
  options.failure_timeout = absl::Milliseconds(200);
  std::unique_ptr<NoDescriptorsLeft> none;
  options.on_store = [&none](const std::string&) {
    none = std::make_unique<NoDescriptorsLeft>();
    return absl::OkStatus();
  };
  absl::StatusOr<Meeting> meeting = Meet(options);
  ASSERT_TRUE(meeting.ok()) << meeting.status();
  const WorkerGroup& group = meeting->group();
  const absl::Status end =
      group.store->Get(group.Key("of rank 1"), Deadline::In(absl::Minutes(5))).status();
  none.reset();
  EXPECT_TRUE(absl::IsAborted(end)) << end;
  EXPECT_THAT(std::string(end.message()), HasSubstr("rank 0 has no file descriptors left"));
}

}  // namespace
}  // namespace gradsync
