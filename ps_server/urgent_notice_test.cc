// Which frames of a server overtake others on their stream.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "core/links/in_process_stream.h"
#include "core/plan/plan.h"
#include "core/plan/plan_proto.h"
#include "core/plan/shard_map.h"
#include "gtest/gtest.h"
#include "ps_server/raw_worker.h"
#include "ps_server/server.h"

namespace gradsync {
namespace {

using Kind = proto::FrameHeader;

// What was sent by the ends that accepted streams.
class SentFrames {
 public:
  struct Frame {
    Kind::Kind kind;
    size_t bytes = 0;
    bool urgent = false;
  };

  void Add(const OutgoingFrame& frame) {
    MutexLock lock(&mutex_);
    frames_.push_back({frame.header.kind(), frame.payload.size(), frame.urgent});
  }

  std::vector<Frame> Of(Kind::Kind kind) {
    MutexLock lock(&mutex_);
    std::vector<Frame> some;
    for (const Frame& frame : frames_) {
      if (frame.kind == kind) some.push_back(frame);
    }
    return some;
  }

 private:
  Mutex mutex_;
  std::vector<Frame> frames_ ABSL_GUARDED_BY(mutex_);
};

class WatchedStream : public FrameStream {
 public:
  WatchedStream(std::shared_ptr<FrameStream> stream, SentFrames* sent)
      : stream_(std::move(stream)), sent_(sent) {}

  void Send(OutgoingFrame frame) override {
    sent_->Add(frame);
    stream_->Send(std::move(frame));
  }
  void Finish() override { stream_->Finish(); }
  void Cancel(absl::Status reason) override { stream_->Cancel(std::move(reason)); }
  StreamProof proof() const override { return stream_->proof(); }

 private:
  const std::shared_ptr<FrameStream> stream_;
  SentFrames* const sent_;
};

class WatchedLink : public StreamLink {
 public:
  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    return link_->Listen(address, [this, acceptor = std::move(acceptor)](auto stream) {
      return acceptor(std::make_shared<WatchedStream>(std::move(stream), &sent));
    });
  }
  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    return link_->Connect(address, connection, std::move(sink), deadline);
  }

  SentFrames sent;

 private:
  const std::shared_ptr<StreamLink> link_ = NewInProcessLink();
};

// Two workers' two chunks.
Plan KeptParameters() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  BucketSlots slots;
  slots.gradients = slots.parameters = 1;
  return *Plan::FromBuckets({{"a", {30}, {1}, 0}}, {{0}}, optimizer, 2, /*chunk_bytes=*/64)
              ->WithSlots(slots);
}

// A worker that computes asks for parameters while it waits for this word: behind them it would
// come too late.
TEST(UrgentNoticeTest, WordThatAGradientWasUsedOvertakesParametersOnTheirWay) {
  const auto link = std::make_shared<WatchedLink>();
  ServerOptions options;
  options.link = link;
  options.timeout = absl::Seconds(30);
  options.run_id = "test";
  const std::unique_ptr<ParameterServer> server = *ParameterServer::Start(options);
  const Plan plan = KeptParameters();
  std::vector<std::unique_ptr<RawStream>> workers;
  for (int rank : {0, 1}) {
    workers.push_back(std::make_unique<RawStream>(*link, server->address()));
    proto::Hello hello = RawStream::HelloFor(plan, rank);
    hello.mutable_terms()->set_update_site(proto::OWNER);
    workers[rank]->SayHello(hello);
  }
  for (int rank : {0, 1}) ASSERT_TRUE(workers[rank]->Await(Kind::HELLO).has_value());
  const ShardMap shards = *ShardMap::Create(plan, {1});
  const std::vector<ChunkId> order = PushOrder(plan, shards, 0, 0);
  ASSERT_EQ(order.size(), 2u);
  for (const ChunkId id : order) {
    proto::FrameHeader header;
    header.set_kind(Kind::PARAMETERS);
    SetChunk(id, &header);
    workers[0]->Send(header, std::string(64, '\0'));
    ASSERT_TRUE(workers[0]->Await(Kind::PARAMETERS).has_value());
  }
  StepOptions step;
  step.step = 1;
  step.lr = 0.1;
  for (int rank : {0, 1}) {
    for (const ChunkId id : PushOrder(plan, shards, 0, rank)) workers[rank]->Push(id, step, 64);
  }
  for (int rank : {0, 1}) {
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(workers[rank]->Await(Kind::PULL).has_value());
  }
  proto::FrameHeader ask;
  ask.set_kind(Kind::SHARD);
  ask.set_bucket(0);
  workers[0]->Send(ask, "");
  ASSERT_TRUE(workers[0]->Await(Kind::SHARD).has_value());
  ASSERT_TRUE(workers[0]->Await(Kind::SHARD).has_value());

  const std::vector<SentFrames::Frame> notices = link->sent.Of(Kind::PULL);
  ASSERT_EQ(notices.size(), 4u);
  for (const SentFrames::Frame& notice : notices) {
    EXPECT_EQ(notice.bytes, 0u);
    EXPECT_TRUE(notice.urgent);
  }
  const std::vector<SentFrames::Frame> parameters = link->sent.Of(Kind::SHARD);
  ASSERT_EQ(parameters.size(), 2u);
  for (const SentFrames::Frame& chunk : parameters) {
    EXPECT_EQ(chunk.bytes, 64u);
    EXPECT_FALSE(chunk.urgent);
  }
  workers.clear();
}

}  // namespace
}  // namespace gradsync
