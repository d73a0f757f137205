#include "benchmarks/network/tcp_flows.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/group/key_value_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(TcpFlowsTest, EveryRankSendsAndReceivesItsFlows) {
  const TcpFlowBytes flows = {{{0, 1}, 3000000}, {{1, 0}, 1}, {{2, 0}, 700000}, {{1, 2}, 0}};
  WorkerGroup group;
  group.world_size = 3;
  group.run_id = "flows";
  group.address = "127.0.0.1";
  group.store = NewInMemoryStore();
  group.timeout = absl::Seconds(30);
  std::vector<int64_t> sent(3);
  std::vector<int64_t> received(3);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      WorkerGroup own = group;
      own.rank = rank;
      const auto tcp = TcpFlows::Connect(own, flows);
      ASSERT_TRUE(tcp.ok()) << tcp.status();
      for (int i = 0; i < 2; ++i) EXPECT_TRUE((*tcp)->Exchange().ok());
      sent[rank] = (*tcp)->tx_bytes();
      received[rank] = (*tcp)->rx_bytes();
    });
  }
  for (std::thread& thread : ranks) thread.join();
  EXPECT_THAT(sent, testing::ElementsAre(3000000, 1, 700000));
  EXPECT_THAT(received, testing::ElementsAre(700001, 3000000, 0));
}

TEST(TcpFlowsTest, FlowsThatCannotBeAreRefused) {
  WorkerGroup group;
  group.world_size = 2;
  for (const TcpFlowBytes& flows : {TcpFlowBytes{{{0, 2}, 5}}, TcpFlowBytes{{{-1, 0}, 5}},
                                    TcpFlowBytes{{{0, 0}, 5}}, TcpFlowBytes{{{0, 1}, -5}}}) {
    const absl::Status status = TcpFlows::Connect(group, flows).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  }
}

}  // namespace
}  // namespace gradsync
