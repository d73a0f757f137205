#include "core/group/side_channel.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/grpc_store.h"
#include "core/group/key_value_store.h"
#include "core/group/store_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

void RunRanks(int world_size, const std::function<void(int rank)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

WorkerGroup Group(int rank, int world_size, std::shared_ptr<KeyValueStore> store) {
  WorkerGroup group;
  group.rank = rank;
  group.world_size = world_size;
  group.run_id = "test";
  group.store = std::move(store);
  return group;
}

TEST(SideChannelTest, AllGatherGivesEverybodysBytesByRank) {
  for (int n = 1; n <= 8; ++n) {
    const auto store = NewInMemoryStore();
    std::vector<std::string> expected;
    for (int rank = 0; rank < n; ++rank) expected.push_back(absl::StrCat("from\n", rank));
    RunRanks(n, [&](int rank) {
      SideChannel channel(Group(rank, n, store), "test");
      EXPECT_EQ(channel.AllGather(expected[rank], Soon()).value(), expected);
    });
  }
}

TEST(SideChannelTest, BroadcastGivesRank0sBytes) {
  const auto store = NewInMemoryStore();
  RunRanks(4, [&](int rank) {
    SideChannel channel(Group(rank, 4, store), "test");
    EXPECT_EQ(channel.Broadcast(absl::StrCat("from ", rank), Soon()).value(), "from 0");
  });
}

TEST(SideChannelTest, SumsAreFoldedInRankOrderAndEqualToTheBit) {
  // In another order, or from the other end, the first sum is 0 or 2.
  const std::vector<std::vector<double>> values = {
      {1, -0.0, 0.1}, {1e17, -0.0, 0.2}, {-1e17, -0.0, 0.3}};
  const auto store = NewInMemoryStore();
  std::vector<std::vector<double>> sums(3);
  RunRanks(3, [&](int rank) {
    SideChannel channel(Group(rank, 3, store), "test");
    sums[rank] = channel.SumDoubles(values[rank], Soon()).value();
  });
  for (const std::vector<double>& each : sums) {
    EXPECT_EQ(each, (std::vector<double>{(1 + 1e17) + -1e17, -0.0, (0.1 + 0.2) + 0.3}));
    EXPECT_TRUE(std::signbit(each[1]));
  }
}

TEST(SideChannelTest, SumsOfDifferentLengthsAreAnErrorOnAllRanks) {
  const auto store = NewInMemoryStore();
  RunRanks(3, [&](int rank) {
    SideChannel channel(Group(rank, 3, store), "test");
    const absl::Status status =
        channel.SumDoubles(std::vector<double>(rank == 2 ? 5 : 4), Soon()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0 sums 4 doubles, rank 2 5"));
  });
}

TEST(SideChannelTest, NobodyPassesABarrierBeforeAllHaveCome) {
  constexpr int kRanks = 4;
  const auto store = NewInMemoryStore();
  std::atomic<int> come{0};
  RunRanks(kRanks, [&](int rank) {
    SideChannel channel(Group(rank, kRanks, store), "test");
    for (int round = 1; round <= 20; ++round) {
      ++come;
      ASSERT_TRUE(channel.Barrier(Soon()).ok());
      EXPECT_GE(come, round * kRanks);
      ASSERT_TRUE(channel.Barrier(Soon()).ok());
    }
  });
}

TEST(SideChannelTest, CallsMatchByOrderOverTheNetworkToo) {
  constexpr int kRanks = 3;
  const auto server = GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials()).value();
  RunRanks(kRanks, [&](int rank) {
    auto store =
        ConnectStore(absl::StrCat("127.0.0.1:", server->port()), InsecureCredentials(), Soon());
    ASSERT_TRUE(store.ok()) << store.status();
    SideChannel channel(Group(rank, kRanks, *std::move(store)), "test");
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(channel.Broadcast(absl::StrCat(i), Soon()).value(), absl::StrCat(i));
      EXPECT_THAT(channel.SumDoubles({1.0 * rank * i}, Soon()).value(), ElementsAre(3.0 * i));
      EXPECT_EQ(channel.AllGather(absl::StrCat(i, "/", rank), Soon()).value()[1],
                absl::StrCat(i, "/1"));
    }
  });
}

// A checkpoint of a ring whose owners update failed where a bucket's optimizer state exceeded what the
// store takes as one value, and so did the broadcast of large buffers.
TEST(SideChannelTest, ValuesLargerThanTheStoreTakesArriveWhole) {
  const auto store = NewInMemoryStore();
  const std::string large(StoreMap::kMaxValueBytes + 12345, 'x');
  RunRanks(2, [&](int rank) {
    SideChannel channel(Group(rank, 2, store), "test");
    const auto parts = channel.AllGather(rank == 1 ? large : "small", Soon());
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ((*parts)[0], "small");
    EXPECT_TRUE((*parts)[1] == large);
    const auto broadcast = channel.Broadcast(rank == 0 ? large : "", Soon());
    ASSERT_TRUE(broadcast.ok()) << broadcast.status();
    EXPECT_TRUE(*broadcast == large);
  });
}

TEST(SideChannelTest, PiecesOfAnySizeMakeUpValuesOfAnySize) {
  constexpr int kRanks = 3;
  for (size_t piece : {1, 2, 7, 64}) {
    const auto store = NewInMemoryStore();
    RunRanks(kRanks, [&](int rank) {
      SideChannel channel(Group(rank, kRanks, store), "test", SidePieces{piece, piece, 0});
      for (size_t size : {0, 1, 6, 7, 8, 14, 63, 64, 65}) {
        std::vector<std::string> expected;
        for (int r = 0; r < kRanks; ++r) {
          expected.push_back(
              std::string(size * static_cast<size_t>(r), static_cast<char>('a' + r)));
        }
        EXPECT_EQ(channel.AllGather(expected[rank], Soon()).value(), expected);
        EXPECT_EQ(channel.Broadcast(expected[2], Soon()).value(), expected[2]);
        EXPECT_EQ(channel.SumDoubles(std::vector<double>(size, 1.5), Soon()).value(),
                  std::vector<double>(size, 1.5 * kRanks));
      }
    });
  }
}

// What the store holds and sends does not grow with the square of the group.
TEST(SideChannelTest, PiecesShrinkWithTheNumberOfRanks) {
  const SidePieces pieces;
  EXPECT_EQ(pieces.Bytes(1, 2), size_t{16} << 20);
  for (int n : {2, 8, 64, 200}) {
    for (int givers : {1, n}) EXPECT_LE(pieces.Bytes(givers, n) * givers * n, pieces.visit);
  }
  EXPECT_EQ(pieces.Bytes(1000, 1000), pieces.least);
  EXPECT_GT(pieces.Bytes(1, 1000), 50 * pieces.least);
}

TEST(SideChannelTest, AnAnswerCutOffIsNamed) {
  const auto store = NewInMemoryStore();
  const WorkerGroup other = Group(1, 2, store);
  std::thread thread([&] {
    store->AllGather(other.Key("side/test/0"), 1, 2, "AllGather 5\nabc", Soon()).IgnoreError();
  });
  SideChannel channel(Group(0, 2, store), "test");
  const absl::Status status = channel.AllGather("", Soon()).status();
  thread.join();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 said 5 bytes"));
}

TEST(SideChannelTest, ChannelsWithDifferentNamesNeverMeet) {
  const auto store = NewInMemoryStore();
  RunRanks(2, [&](int rank) {
    SideChannel one(Group(rank, 2, store), "one");
    SideChannel two(Group(rank, 2, store), "two");
    std::thread other([&] {
      EXPECT_THAT(two.AllGather(absl::StrCat("two", rank), Soon()).value(),
                  ElementsAre("two0", "two1"));
    });
    EXPECT_THAT(one.AllGather(absl::StrCat("one", rank), Soon()).value(),
                ElementsAre("one0", "one1"));
    other.join();
  });
}

TEST(SideChannelTest, DifferentCallsAreAnErrorThatNamesBoth) {
  const auto store = NewInMemoryStore();
  RunRanks(2, [&](int rank) {
    SideChannel channel(Group(rank, 2, store), "test");
    const absl::Status status =
        rank == 0 ? channel.Barrier(Soon()) : channel.AllGather("x", Soon()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Barrier"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("AllGather"));
    EXPECT_EQ(channel.Barrier(Soon()), status) << "an error stays";
  });
}

TEST(SideChannelTest, ARankThatDoesNotComeIsNamed) {
  SideChannel channel(Group(0, 3, NewInMemoryStore()), "test");
  const absl::Status status = channel.Barrier(Deadline::In(absl::Milliseconds(20)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ranks 1, 2 of 3"));
}

// Members of a part have numbers of their own, and a message that began with one blamed the rank of
// the job that has it.
TEST(SideChannelTest, AMemberOfAPartThatDoesNotComeIsNotTakenForARankOfTheJob) {
  WorkerGroup group = Group(0, 2, NewInMemoryStore());
  group.part = "stage1";
  group.ranks_of_job = {1, 3};
  SideChannel channel(group, "test");
  const absl::Status status = channel.Barrier(Deadline::In(absl::Milliseconds(20)));
  EXPECT_EQ(status.message().find("of the group of ranks 1, 3, numbered from 0: rank 1 of 2"), 0)
      << status;
}

TEST(SideChannelTest, MembersOfAPartHaveTheirNumbersInTheJob) {
  const auto store = NewInMemoryStore();
  RunRanks(2, [&](int rank) {
    WorkerGroup group = Group(rank, 2, store);
    group.ranks_of_job = {1, 3};
    SideChannel channel(group, "test");
    EXPECT_EQ(channel.Name(1), "rank 3");
    const absl::Status status =
        rank == 0 ? channel.Barrier(Soon()) : channel.AllGather("x", Soon()).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 made "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 3 made "));
  });
}

TEST(SideChannelTest, OneWorkerNeedsNoStore) {
  SideChannel channel(Group(0, 1, nullptr), "test");
  EXPECT_THAT(channel.AllGather("bytes", Soon()).value(), ElementsAre("bytes"));
  EXPECT_EQ(channel.Broadcast("bytes", Soon()).value(), "bytes");
  EXPECT_THAT(channel.SumDoubles({1, 2}, Soon()).value(), ElementsAre(1, 2));
  EXPECT_TRUE(channel.Barrier(Soon()).ok());
  EXPECT_EQ(channel.bytes_sent(), 0);
  EXPECT_EQ(channel.bytes_received(), 0);
}

TEST(SideChannelTest, BytesAreCounted) {
  const auto store = NewInMemoryStore();
  RunRanks(2, [&](int rank) {
    SideChannel channel(Group(rank, 2, store), "test");
    ASSERT_TRUE(channel.AllGather(rank == 0 ? "123" : "4567", Soon()).ok());
    ASSERT_TRUE(channel.SumDoubles({1, 2}, Soon()).ok());
    ASSERT_TRUE(channel.Barrier(Soon()).ok());
    EXPECT_EQ(channel.bytes_sent(), (rank == 0 ? 3 : 4) + 16);
    EXPECT_EQ(channel.bytes_received(), 7 + 32);
  });
}

}  // namespace
}  // namespace gradsync
