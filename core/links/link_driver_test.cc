#include "core/links/link_driver.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/in_process_stream.h"
#include "core/links/stream_test_util.h"
#include "core/links/tcp_stream.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

class FakeDrivable : public Drivable {
 public:
  bool BeginDriving() override { return !taken; }
  void EndDriving(bool idle) override {
    ++ends;
    was_idle = idle;
  }
  bool Poll() override { return ++polls <= busy; }

  bool taken = false;
  int busy = 0;  // polls that find something
  int polls = 0;
  int ends = 0;
  bool was_idle = false;
};

class LinkDriverTest : public ::testing::Test {
 protected:
  LinkDriver Driving(absl::Duration spin) {
    return LinkDriver(spin, [this](Drivables* drivables) { drivables->push_back(fake_); });
  }

  const std::shared_ptr<FakeDrivable> fake_ = std::make_shared<FakeDrivable>();
};

TEST_F(LinkDriverTest, LooksUntilTheExchangeIsDone) {
  fake_->busy = 100000;
  LinkDriver driver = Driving(absl::Seconds(30));
  driver.Drive([this] { return fake_->polls == 7; }, Soon());
  EXPECT_EQ(fake_->polls, 7);
  EXPECT_EQ(fake_->ends, 1);
  EXPECT_FALSE(fake_->was_idle);
}

TEST_F(LinkDriverTest, ReturnsWhereNothingComes) {
  fake_->busy = 3;
  LinkDriver driver = Driving(absl::Microseconds(1));
  driver.Drive([] { return false; }, Soon());
  EXPECT_EQ(fake_->ends, 1);
  EXPECT_TRUE(fake_->was_idle);
}

TEST_F(LinkDriverTest, ReturnsAtItsDeadline) {
  fake_->busy = 1000000000;
  LinkDriver driver = Driving(absl::Seconds(30));
  driver.Drive([] { return false; }, Deadline::In(absl::Milliseconds(1)));
  EXPECT_TRUE(fake_->was_idle);
}

TEST_F(LinkDriverTest, LeavesAloneWhatAnotherThreadDrives) {
  fake_->taken = true;
  LinkDriver driver = Driving(absl::Seconds(30));
  driver.Drive([] { return false; }, Soon());
  EXPECT_EQ(fake_->polls, 0);
  EXPECT_EQ(fake_->ends, 0);
}

// Frames one after the other, each of which this thread waits for by driving: in the end it is the one
// that hears them. When it no longer drives the link's own threads do.
void ExpectToHear(StreamLink& link) {
  const std::shared_ptr<LinkDriver> driver = link.driver();
  if (driver == nullptr) GTEST_SKIP() << "this machine has one core, on which no thread looks";
  const std::thread::id self = std::this_thread::get_id();
  std::atomic<int> heard{0}, heard_here{0};
  Host host([&] {
    return std::make_shared<RecordingSink>(/*keep_owners=*/false, [&] {
      if (std::this_thread::get_id() == self) ++heard_here;
      ++heard;
    });
  });
  auto listener = link.Listen("127.0.0.1:0", host.acceptor());
  ASSERT_TRUE(listener.ok()) << listener.status();
  auto stream = link.Connect((*listener)->address(), 0, std::make_shared<RecordingSink>(), Soon());
  ASSERT_TRUE(stream.ok()) << stream.status();
  const std::string payload = Pattern(100, 1);
  LoanBook book;
  const auto accepted = host.Await(1)[0];
  uint32_t sent = 0;
  // A thread that shares its core with others looks less often.
  for (const Deadline deadline = Soon(); heard_here < 3 && !deadline.passed();) {
    (*stream)->Send(book.Lend(payload, sent++));
    driver->Drive([&] { return heard >= static_cast<int>(sent); }, deadline);
    ASSERT_TRUE(accepted.second->AwaitFrames(sent));
  }
  EXPECT_GE(heard_here, 3);
  const int here = heard_here;
  for (int i = 0; i < 10; ++i) (*stream)->Send(book.Lend(payload, sent++));
  ASSERT_TRUE(accepted.second->AwaitFrames(sent));
  EXPECT_EQ(heard_here, here);
  const auto frames = accepted.second->heard();
  for (uint32_t i = 0; i < sent; ++i) ASSERT_EQ(frames[i].header.slot(), i);
  EXPECT_EQ(accepted.second->misplaced_calls(), 0);
  EXPECT_TRUE(book.AwaitAllBack());
}

TcpLinkOptions LooksLong() {
  TcpLinkOptions options;
  options.spin = absl::Milliseconds(100);
  return options;
}

TEST_F(LinkDriverTest, AThreadThatWaitsHearsWhatComesByTcp) {
  ExpectToHear(*NewTcpLink(LooksLong()));
}

TEST_F(LinkDriverTest, AThreadThatWaitsHearsWhatComesFromItsOwnProcess) {
  ExpectToHear(*NewNearLink(NewTcpLink(LooksLong()), {}));
}

TEST_F(LinkDriverTest, ALinkThatIsNotToLookHasNone) {
  TcpLinkOptions options;
  options.spin = absl::ZeroDuration();
  EXPECT_EQ(NewTcpLink(options)->driver(), nullptr);
}

}  // namespace
}  // namespace gradsync
