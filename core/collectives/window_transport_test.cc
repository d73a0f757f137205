// Two ends in one process, one of them played by hand where nothing has to wait.
#include "core/collectives/window_transport.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "core/group/side_channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr size_t kPiece = 128;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

CollectiveCall CallNumber(uint64_t number) {
  CollectiveCall call;
  call.number = number;
  return call;
}

class WindowTransportTest : public ::testing::Test {
 protected:
  WindowTransportTest() {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    for (int rank : {0, 1}) {
      WindowTransportOptions options;
      options.group.rank = rank;
      options.group.world_size = 2;
      options.group.run_id = "windows";
      options.group.store = store;
      options.on_error = [](const absl::Status& status) { ADD_FAILURE() << status; };
      options.piece_bytes = kPiece - 1;  // rounded up
      groups_.push_back(options.group);
      ends_.push_back(std::make_unique<WindowTransport>(std::move(options)));
    }
    std::thread other([this] { Connect(1); });
    Connect(0);
    other.join();
    for (auto& end : ends_) end->Begin(Soon());
  }
  ~WindowTransportTest() override {
    for (auto& end : ends_) EXPECT_EQ(end->Finish(Soon()), absl::OkStatus());
  }

  void Connect(int rank) {
    SideChannel channel(groups_[rank], "test");
    ASSERT_EQ(ends_[rank]->Connect(channel, Soon()), absl::OkStatus());
  }

  absl::Status Send(int from, CallLane lane, uint64_t number, const std::string& text) {
    return ends_[from]->Send(lane, 1 - from, CallNumber(number), absl::MakeConstSpan(text));
  }

  // What comes next, with the number of its call.
  std::string Take(int at, CallLane lane) {
    const absl::StatusOr<const CallMessage*> message = ends_[at]->Receive(lane, 1 - at);
    if (!message.ok()) return message.status().ToString();
    std::string text = std::to_string((*message)->call.number) + " ";
    for (absl::Span<const char> part : (*message)->parts) text.append(part.data(), part.size());
    ends_[at]->Release(lane, 1 - at);
    return text;
  }

  std::vector<WorkerGroup> groups_;
  std::vector<std::unique_ptr<WindowTransport>> ends_;
};

TEST_F(WindowTransportTest, MessagesKeepTheirOrderInEachLane) {
  EXPECT_EQ(ends_[0]->piece_bytes(), kPiece);
  const std::string whole(kPiece, 'w');
  EXPECT_EQ(Send(0, kCollectives, 1, "one"), absl::OkStatus());
  EXPECT_EQ(Send(0, kMail, 7, "seven"), absl::OkStatus());
  EXPECT_EQ(Send(0, kCollectives, 2, ""), absl::OkStatus());
  EXPECT_EQ(Send(0, kCollectives, 3, whole), absl::OkStatus());
  EXPECT_EQ(Send(0, kMail, 8, ""), absl::OkStatus());
  EXPECT_EQ(Take(1, kCollectives), "1 one");
  EXPECT_EQ(Take(1, kCollectives), "2 ");
  EXPECT_EQ(Take(1, kCollectives), "3 " + whole);
  EXPECT_EQ(Take(1, kMail), "7 seven");
  EXPECT_EQ(Take(1, kMail), "8 ");
}

TEST_F(WindowTransportTest, ASlotIsUsedAgainOnceItIsRead) {
  for (uint64_t number = 1; number <= 1000; ++number) {
    const std::string text = "text " + std::to_string(number);
    ASSERT_EQ(Send(0, kCollectives, number, text), absl::OkStatus());
    ASSERT_EQ(Send(1, kMail, number, text), absl::OkStatus());
    ASSERT_EQ(Take(1, kCollectives), std::to_string(number) + " " + text);
    ASSERT_EQ(Take(0, kMail), std::to_string(number) + " " + text);
  }
}

TEST_F(WindowTransportTest, ASenderWaitsForRoomUntilItsDeadline) {
  ends_[0]->Begin(Deadline::In(absl::Milliseconds(100)));
  absl::Status status;
  uint64_t sent = 0;
  while (status.ok() && sent < 1000) status = Send(0, kCollectives, ++sent, "x");
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("from rank 1"));
  // There is room as soon as one is read.
  EXPECT_EQ(Take(1, kCollectives), "1 x");
  ends_[0]->Begin(Soon());
  EXPECT_EQ(Send(0, kCollectives, sent, "x"), absl::OkStatus());
}

TEST_F(WindowTransportTest, WhoeverWaitsForAnythingTakesItsMail) {
  std::thread other([this] {
    for (uint64_t number = 1; number <= 100; ++number) {
      ASSERT_EQ(Send(1, kMail, number, "mail"), absl::OkStatus());
    }
    ASSERT_EQ(Send(1, kCollectives, 1, "x"), absl::OkStatus());
  });
  EXPECT_EQ(Take(0, kCollectives), "1 x");
  other.join();
  for (uint64_t number = 1; number <= 100; ++number) {
    EXPECT_EQ(Take(0, kMail), std::to_string(number) + " mail");
  }
}

TEST_F(WindowTransportTest, AFailureEndsAWait) {
  std::thread failing([this] { ends_[0]->Fail(absl::AbortedError("rank 1 failed")); });
  EXPECT_EQ(Take(0, kCollectives), absl::AbortedError("rank 1 failed").ToString());
  failing.join();
}

}  // namespace
}  // namespace gradsync
