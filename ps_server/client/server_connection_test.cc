#include "ps_server/client/server_connection.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;

constexpr int kFailedAtOnce = -1;
constexpr int kFinished = -2;

// Keeps the slots of what is sent.
class Recorder : public FrameStream {
 public:
  explicit Recorder(std::vector<int>* sent) : sent_(sent) {}
  void Send(OutgoingFrame frame) override {
    sent_->push_back(frame.urgent ? kFailedAtOnce : static_cast<int>(frame.header.slot()));
    frame.released.Run();
  }
  void Finish() override { sent_->push_back(kFinished); }
  void Cancel(absl::Status) override {}

 private:
  std::vector<int>* const sent_;
};

class RecordingLink : public StreamLink {
 public:
  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string&,
                                                         StreamAcceptor) override {
    return absl::UnavailableError("nobody listens");
  }
  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string&, int connection,
                                                       std::shared_ptr<FrameSink>,
                                                       Deadline) override {
    return std::make_shared<Recorder>(&sent[connection]);
  }

  std::vector<int> sent[2];
};

OutgoingFrame Chunk(int slot, double max_norm = 0) {
  OutgoingFrame frame;
  frame.header.set_kind(proto::FrameHeader::PUSH);
  frame.header.set_slot(slot);
  frame.header.set_max_norm(max_norm);
  return frame;
}

TEST(ServerConnectionTest, AWorkerGoesByResults) {
  RecordingLink link;
  ServerConnection server(0, 0, "server 0", "nowhere:1", /*connections=*/1, /*lead=*/2);
  ASSERT_TRUE(server.Connect(link, nullptr, Deadline::Never()).ok());
  for (int slot = 0; slot < 5; ++slot) server.Queue(Chunk(slot), slot);
  EXPECT_THAT(link.sent[0], ElementsAre(0, 1));
  server.AddResult();
  EXPECT_THAT(link.sent[0], ElementsAre(0, 1, 2));
  server.AddResult();
  server.AddResult();
  // Credit is for twice the lead, and three results do not bring any.
  EXPECT_THAT(link.sent[0], ElementsAre(0, 1, 2, 3));
  ASSERT_TRUE(server.AddCredit(1).ok());
  EXPECT_THAT(link.sent[0], ElementsAre(0, 1, 2, 3, 4));
  EXPECT_TRUE(absl::IsInvalidArgument(server.AddCredit(5)));
}

TEST(ServerConnectionTest, ChunksOfAClippedStepDoNotWaitForResultsWhichWaitForThem) {
  RecordingLink link;
  ServerConnection server(0, 0, "server 0", "nowhere:1", /*connections=*/2, /*lead=*/2);
  for (int connection : {0, 1}) {
    (void)connection;
    ASSERT_TRUE(server.Connect(link, nullptr, Deadline::Never()).ok());
  }
  for (int slot = 0; slot < 4; ++slot) server.Queue(Chunk(slot, /*max_norm=*/1), slot);
  EXPECT_THAT(link.sent[0], ElementsAre(0, 2));
  EXPECT_THAT(link.sent[1], ElementsAre(1, 3));
}

TEST(ServerConnectionTest, AServerHearsAtOnceWhyAWorkerLeavesInTheMiddleOfAStep) {
  RecordingLink link;
  ServerConnection server(0, 0, "server 0", "nowhere:1", /*connections=*/1, /*lead=*/1);
  ASSERT_TRUE(server.Connect(link, nullptr, Deadline::Never()).ok());
  bool released[3] = {};
  for (int slot = 0; slot < 3; ++slot) {
    OutgoingFrame frame = Chunk(slot);
    frame.released = [&released, slot] { released[slot] = true; };
    server.Queue(std::move(frame), slot);
    if (slot == 1) server.LeaveWith(absl::AbortedError("rank 7 lost"), /*at_once=*/true);
  }
  server.AddResult();
  EXPECT_THAT(link.sent[0], ElementsAre(0, kFailedAtOnce, kFinished));
  EXPECT_THAT(released, ElementsAre(true, true, true));
}

}  // namespace
}  // namespace gradsync
