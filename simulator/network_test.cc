#include "simulator/network.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pair;

constexpr int64_t kPiece = 16 << 10;

// A piece takes a second.
class NetworkTest : public ::testing::Test, public MessageReceiver {
 protected:
  void Start(std::vector<int> hosts, double latency = 0, double seconds_per_message = 0) {
    network_.emplace_back(
        SimulatedNetwork::Options{static_cast<double>(kPiece), latency, seconds_per_message},
        std::move(hosts), &queue_, this);
  }
  void Send(int from, int to, int64_t bytes, int slot, int connection = 0, bool urgent = false) {
    SimulatedMessage message;
    message.from = from;
    message.to = to;
    message.connection = connection;
    message.urgent = urgent;
    message.bytes = bytes;
    message.slot = slot;
    network_.back().Send(message);
  }
  void OnMessage(const SimulatedMessage& message) override {
    arrived_.emplace_back(message.slot, queue_.now());
  }

  EventQueue queue_;
  std::deque<SimulatedNetwork> network_;
  std::vector<std::pair<int, double>> arrived_;
};

TEST_F(NetworkTest, AMessageTakesItsBytesTheLatencyAndTheCostOfAMessage) {
  Start({0, 1}, 0.5, 0.25);
  Send(0, 1, 3 * kPiece, 1);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, DoubleNear(3.75, 1e-9))));
  EXPECT_EQ(network_[0].traffic()[0].tx_bytes, 3 * kPiece);
  EXPECT_EQ(network_[0].traffic()[1].rx_bytes, 3 * kPiece);
  EXPECT_NEAR(network_[0].BusySeconds(1), 3.25, 1e-9);
}

TEST_F(NetworkTest, EachEndOfAMessageWaitsForACoreThatIsFree) {
  SimulatedNetwork::Options options = {static_cast<double>(kPiece)};
  options.cores = {1, 0.5, 0.25 / kPiece};  // the one core takes 0.75 s for an end of a piece
  network_.emplace_back(options, std::vector<int>{0, 1, 2, 3, 3}, &queue_, this);
  Send(0, 1, kPiece, 1);  // leaves at 0.75, has arrived at 1.75
  Send(1, 2, kPiece, 2);  // leaves at 1.5, has arrived at 2.5
  Send(3, 4, kPiece, 3);  // within a host: leaves at 2.25, and is there
  Send(3, 4, 0, 4);       // costs nothing
  queue_.Run();
  EXPECT_THAT(arrived_,
              ElementsAre(Pair(4, DoubleNear(0, 1e-9)), Pair(1, DoubleNear(3, 1e-9)),
                          Pair(3, DoubleNear(3.75, 1e-9)), Pair(2, DoubleNear(4.5, 1e-9))));
}

TEST_F(NetworkTest, AnIdleInterfaceLetsABurstPassWhichCountsAgainstTheRateAfterwards) {
  network_.emplace_back(SimulatedNetwork::Options{static_cast<double>(kPiece), 0, 0, 2.0 * kPiece},
                        std::vector<int>{0, 1}, &queue_, this);
  Send(0, 1, 2 * kPiece, 1);
  Send(0, 1, 3 * kPiece, 2);
  queue_.Run();
  Send(0, 1, 1 * kPiece, 3);  // the bucket is empty
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, DoubleNear(0, 1e-9)), Pair(2, DoubleNear(3, 1e-9)),
                                    Pair(3, DoubleNear(4, 1e-9))));
}

TEST_F(NetworkTest, InsideAHostMessagesAreFree) {
  Start({3, 3}, 0.5, 0.25);
  Send(0, 1, kPiece, 1);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, 0)));
  EXPECT_EQ(network_[0].traffic()[3].tx_bytes, 0);
}

TEST_F(NetworkTest, ConnectionsShareAnInterfaceEvenlyAndAConnectionKeepsOrder) {
  Start({0, 1, 2});
  Send(0, 1, 2 * kPiece, 1);
  Send(0, 1, kPiece, 2);
  Send(0, 2, 2 * kPiece, 3);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, 3), Pair(3, 4), Pair(2, 5)));
}

TEST_F(NetworkTest, UrgentMessagesOvertakeThoseThatWaitButNotTheOneBeingSent) {
  Start({0, 1});
  Send(0, 1, 2 * kPiece, 1);
  Send(0, 1, kPiece, 2);
  Send(0, 1, kPiece, 3, 0, /*urgent=*/true);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, 2), Pair(3, 3), Pair(2, 4)));
}

TEST_F(NetworkTest, ManySendersQueueAtTheReceiversInterface) {
  Start({0, 1, 2, 3});
  for (int from : {1, 2, 3}) Send(from, 0, kPiece, from);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, 1), Pair(2, 2), Pair(3, 3)));
  EXPECT_NEAR(network_[0].BusySeconds(0), 3, 1e-9);
  EXPECT_NEAR(network_[0].BusySeconds(1), 1, 1e-9);
}

// What comes later to the same receiver must not delay what left earlier.
TEST_F(NetworkTest, AMessageIsNotHeldUpByThoseThatCameAfterIt) {
  Start({0, 1, 2});
  Send(1, 0, kPiece, 1);
  Send(2, 1, 0, 9);
  Send(2, 0, 4 * kPiece, 2);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(9, 0), Pair(1, 1), Pair(2, 5)));
}

TEST_F(NetworkTest, BothDirectionsRunAtTheSameTime) {
  Start({0, 1});
  Send(0, 1, kPiece, 1);
  Send(1, 0, kPiece, 2);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, 1), Pair(2, 1)));
}

TEST_F(NetworkTest, MessagesWithoutBytesTakeOnlyTheLatency) {
  Start({0, 1}, 0.5, 0.25);
  Send(0, 1, 0, 1);
  queue_.Run();
  EXPECT_THAT(arrived_, ElementsAre(Pair(1, 0.5)));
}

}  // namespace
}  // namespace gradsync
