#include "core/links/in_process_stream.h"

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/links/grpc_stream.h"
#include "core/links/stream_test_util.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

std::shared_ptr<StreamLink> NewLink(const std::string& run) {
  GrpcLinkOptions options;
  options.proof = {run, ""};
  return NewNearLink(NewGrpcLink(options), options.proof);
}

// Who receives keeps what came. Only memory of the sender's own is out for so long.
class NearLinkTest : public ::testing::Test {
 protected:
  NearLinkTest() {
    auto listener = link_->Listen("127.0.0.1:0", host_.acceptor());
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
  }

  void Send(StreamLink& link) {
    auto stream = link.Connect(listener_->address(), 0, std::make_shared<RecordingSink>(), Soon());
    ASSERT_TRUE(stream.ok()) << stream.status();
    (*stream)->Send(book_.Lend(payload_));
    (*stream)->Finish();
    const auto accepted = host_.Await(1);
    ASSERT_EQ(accepted.size(), 1u);
    proof_ = accepted[0].first->proof();
    sink_ = accepted[0].second;
    ASSERT_TRUE(sink_->AwaitFrames(1));
    EXPECT_EQ(sink_->heard()[0].payload, payload_);
    accepted[0].first->Finish();
  }

  const std::string payload_ = Pattern(100000, 1);
  LoanBook book_;
  Host host_{[] { return std::make_shared<RecordingSink>(/*keep_owners=*/true); }};
  const std::shared_ptr<StreamLink> link_ = NewLink("here");
  std::unique_ptr<StreamListener> listener_;
  std::shared_ptr<RecordingSink> sink_;
  StreamProof proof_;
};

TEST_F(NearLinkTest, AStreamToItsOwnListenerReadsTheSendersMemory) {
  Send(*link_);
  EXPECT_EQ(proof_.run, "here");
  EXPECT_EQ(book_.back(), 0);
  sink_->DropOwners();
  EXPECT_TRUE(book_.AwaitAllBack());
}

TEST_F(NearLinkTest, AnotherLinksStreamComesOverTheNetwork) {
  const auto other = NewLink("there");
  Send(*other);
  EXPECT_EQ(proof_.run, "there");
  EXPECT_TRUE(book_.AwaitAllBack());
}

TEST_F(NearLinkTest, WhereNobodyListensAnyMoreNobodyAnswers) {
  const std::string address = listener_->address();
  listener_.reset();
  const auto stream = link_->Connect(address, 0, std::make_shared<RecordingSink>(),
                                     Deadline::In(absl::Milliseconds(100)));
  EXPECT_FALSE(stream.ok());
}

}  // namespace
}  // namespace gradsync
