// Stages as threads of one process: bits against the uncut model, failures, receives in any order.

#include "worker/pipeline/stage_step.h"

#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/full.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/tanh.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/host_identity.h"
#include "core/base/mutex.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/links/frames.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/stream_test_util.h"
#include "core/plan/job_spec.h"
#include "core/plan/pipeline_schedule.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/frame.pb.h"
#include "proto/peer.pb.h"
#include "proto/pipeline.pb.h"
#include "worker/pipeline/stage_channel.h"
#include "worker/pipeline/stage_link.h"
#include "worker/pipeline/tensor_frames.h"
#include "worker/pipeline/tensor_ring.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Neighbour = StageLink::Neighbour;

constexpr int64_t kWidth = 6;

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

// Of one stage of several, whose ranks of the job are 0, 10, 20 and so on.
WorkerGroup GroupOf(int stage, int stages, std::shared_ptr<KeyValueStore> store) {
  WorkerGroup group;
  group.rank = stage;
  group.world_size = stages;
  group.run_id = "run";
  group.store = std::move(store);
  group.address = "127.0.0.1";
  group.timeout = absl::Seconds(30);
  group.part = "pipeline";
  for (int s = 0; s < stages; ++s) group.ranks_of_job.push_back(10 * s);
  return group;
}

// The links of all stages, each connected by a thread.
class Stages {
 public:
  explicit Stages(int count, Link tensors = Link::kAuto, std::vector<std::string> fingerprints = {})
      : Stages(std::vector<Link>(count, tensors), std::move(fingerprints)) {}

  // By stage.
  explicit Stages(const std::vector<Link>& tensors, std::vector<std::string> fingerprints = {}) {
    const int count = static_cast<int>(tensors.size());
    InProcessLinkOptions unkind;
    unkind.split_payloads = true;
    unkind.max_delay = absl::Milliseconds(1);
    link_ = NewInProcessLink(unkind);
    for (int stage = 0; stage < count; ++stage) {
      group_ = GroupOf(stage, count, store_);
      activities_.push_back(std::make_shared<Activity>());
      links_.push_back(
          std::make_unique<StageLink>(group_, link_, tensors[stage], activities_.back()));
    }
    statuses_.resize(count);
    OnAll([&](int s) {
      return links_[s]->Connect(fingerprints.empty() ? "same" : fingerprints[s], Soon());
    });
  }

  StageLink& operator[](int stage) { return *links_[stage]; }
  void Lose(int stage) { links_[stage].reset(); }
  StreamLink& link() { return *link_; }
  std::string AddressOf(int stage) {
    WorkerGroup group = group_;
    group.rank = stage;
    return store_->Get(group.Key(absl::StrCat("stage/", stage, "/address")), Soon()).value();
  }
  Activity& activity(int stage) { return *activities_[stage]; }

  // By stage.
  const std::vector<absl::Status>& OnAll(const std::function<absl::Status(int)>& run) {
    std::vector<std::thread> threads;
    for (size_t s = 0; s < links_.size(); ++s) {
      threads.emplace_back([&, s] { statuses_[s] = run(static_cast<int>(s)); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses_;
  }

  const std::vector<absl::Status>& statuses() const { return statuses_; }

 private:
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
  std::shared_ptr<StreamLink> link_;
  WorkerGroup group_;  // of one of them
  std::vector<std::shared_ptr<Activity>> activities_;
  std::vector<std::unique_ptr<StageLink>> links_;
  std::vector<absl::Status> statuses_;
};

// One layer per stage, each beginning with an operation in place, as the first of an uncut model
// could not.
class Layers {
 public:
  explicit Layers(int count) {
    at::set_num_threads(1);
    for (int i = 0; i < count; ++i) {
      weights.push_back((at::randn({kWidth, kWidth}) * 0.5).requires_grad_(true));
    }
  }

  at::Tensor Forward(int layer, const at::Tensor& x) const {
    at::Tensor y = x;
    if (layer > 0) y.relu_();
    return at::tanh(at::matmul(y, weights[layer])) + 0.5 * at::matmul(y, weights[layer].t());
  }

  std::vector<at::Tensor> TakeGradients() {
    std::vector<at::Tensor> gradients;
    for (at::Tensor& weight : weights) {
      gradients.push_back(weight.grad().clone());
      weight.mutable_grad() = at::Tensor();
    }
    return gradients;
  }

  std::vector<at::Tensor> weights;
};

// Micro-batches of 4 rows, the last of 3.
std::vector<at::Tensor> Batches(int64_t count) {
  std::vector<at::Tensor> batches;
  for (int64_t i = 0; i < count; ++i) batches.push_back(at::randn({i + 1 < count ? 4 : 3, kWidth}));
  return batches;
}

class StageStepTest : public ::testing::TestWithParam<PipelineSchedule> {};

// Between ranks, whose tensors pass on streams or through memory, and between threads.
TEST_P(StageStepTest, GradientsHaveTheBitsOfOneProcessThatAccumulates) {
  for (const auto& [stages, by] :
       {std::pair(2, Link::kGrpc), std::pair(3, Link::kGrpc), std::pair(2, Link::kShm),
        std::pair(3, Link::kShm), std::pair(2, Link::kNone), std::pair(3, Link::kNone)}) {
    const bool of_threads = by == Link::kNone;
    Stages links(stages, of_threads ? Link::kAuto : by);
    LocalStages threads(stages);
    const auto channel = [&](int stage) -> StageChannel& {
      return of_threads ? threads.channel(stage) : static_cast<StageChannel&>(links[stage]);
    };
    Layers layers(stages);
    for (int64_t m : {1, 2, 5}) {
      const std::vector<at::Tensor> batches = Batches(m);
      const double share = static_cast<double>(m);
      at::Tensor loss_sum;
      for (const at::Tensor& batch : batches) {
        at::Tensor x = batch;
        for (int s = 0; s < stages; ++s) x = layers.Forward(s, x);
        (x.mean() / share).backward();
        loss_sum = loss_sum.defined() ? loss_sum + x.mean().detach() : x.mean().detach();
      }
      const std::vector<at::Tensor> expected = layers.TakeGradients();

      std::vector<at::Tensor> figures(stages);
      const auto statuses = links.OnAll([&](int stage) {
        at::Tensor sum;
        std::vector<int64_t> begun;
        StageWork work;
        work.begin = [&](int64_t i) -> absl::StatusOr<at::Tensor> {
          begun.push_back(i);
          return batches[i];
        };
        work.seed = [](int64_t) {};
        work.forward = [&, stage](const at::Tensor& x) { return layers.Forward(stage, x); };
        work.objective = [&](const at::Tensor& y) {
          const at::Tensor loss = y.mean();
          sum = sum.defined() ? sum + loss.detach() : loss.detach();
          return loss / share;
        };
        work.figures = [&] { return sum; };
        int64_t backwards = 0;
        work.backward = [&](bool last, const std::function<void()>& run) {
          EXPECT_EQ(last, ++backwards == m);
          run();
          return absl::OkStatus();
        };
        StageTimes times;
        const auto result = RunStageStep(channel(stage), GetParam(), /*step=*/m, m, work,
                                         absl::Seconds(30), &times);
        if (!result.ok()) return result.status();
        figures[stage] = *result;
        EXPECT_EQ(static_cast<int64_t>(begun.size()), m);
        return absl::OkStatus();
      });
      for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
      const std::vector<at::Tensor> found = layers.TakeGradients();
      for (int s = 0; s < stages; ++s) {
        EXPECT_TRUE(found[s].equal(expected[s]))
            << "stage " << s << " of " << stages << ", m " << m;
        EXPECT_TRUE(figures[s].equal(loss_sum)) << "stage " << s;
      }
    }
    for (const absl::Status& status : links.OnAll([&](int s) { return links[s].Finish(Soon()); })) {
      EXPECT_TRUE(status.ok()) << status;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, StageStepTest,
                         ::testing::Values(PipelineSchedule::kNaive, PipelineSchedule::kGpipe,
                                           PipelineSchedule::kOneForwardOneBackward));

class StageLinkTest : public ::testing::TestWithParam<Link> {};

TEST_P(StageLinkTest, TensorsAreTakenInAnyOrderAndBothWays) {
  Stages links(2, GetParam());
  const at::Tensor a = at::randn({3}), b = at::randn({2, 2});
  links[0].Send(Neighbour::kBehind, {TensorKey::kActivation, 1, 0}, a);
  links[0].Send(Neighbour::kBehind, {TensorKey::kActivation, 1, 1}, b);
  links[1].Send(Neighbour::kBefore, {TensorKey::kGradient, 1, 0}, b);
  const auto take = [&](int stage, Neighbour from, TensorKey key) {
    return links[stage].Receive(from, key, Soon()).value();
  };
  EXPECT_TRUE(take(1, Neighbour::kBefore, {TensorKey::kActivation, 1, 1}).equal(b));
  EXPECT_TRUE(take(1, Neighbour::kBefore, {TensorKey::kActivation, 1, 0}).equal(a));
  EXPECT_TRUE(take(0, Neighbour::kBehind, {TensorKey::kGradient, 1, 0}).equal(b));
  EXPECT_EQ(links[0].bytes_sent(), 4 * (3 + 4));
  EXPECT_EQ(links[1].bytes_received(), 4 * (3 + 4));
  EXPECT_EQ(links[0].bytes_received(), 4 * 4);
}

// More than a ring holds, so some pass on the stream, and larger ones, for which it grows.
TEST_P(StageLinkTest, ManyLargeTensorsComeWhole) {
  Stages links(2, GetParam());
  const auto tensor = [](int64_t i, int64_t of) {
    return at::full({i % 10 == 9 ? 50'000 * i : 80'000}, static_cast<double>(2 * i + of));
  };
  for (int64_t i = 0; i < 40; ++i) {
    links[0].Send(Neighbour::kBehind, {TensorKey::kActivation, 1, i}, tensor(i, 0));
    links[1].Send(Neighbour::kBefore, {TensorKey::kGradient, 1, i}, tensor(i, 1));
  }
  for (int64_t i = 0; i < 40; ++i) {
    const auto forward =
        links[1].Receive(Neighbour::kBefore, {TensorKey::kActivation, 1, i}, Soon());
    const auto backward =
        links[0].Receive(Neighbour::kBehind, {TensorKey::kGradient, 1, i}, Soon());
    ASSERT_TRUE(forward.ok() && backward.ok()) << forward.status() << backward.status();
    EXPECT_TRUE(forward->equal(tensor(i, 0)) && backward->equal(tensor(i, 1))) << i;
  }
  for (int stage : {0, 1}) {
    const Neighbour other = stage == 0 ? Neighbour::kBehind : Neighbour::kBefore;
    EXPECT_EQ(links[stage].SharesMemory(other), GetParam() != Link::kGrpc);
  }
}

INSTANTIATE_TEST_SUITE_P(Links, StageLinkTest,
                         ::testing::Values(Link::kGrpc, Link::kShm, Link::kAuto));

// Whichever of the two must share memory, neither goes on without. The other one may have connected
// before it hears of it.
TEST(StageLinkMemoryTest, WhereItMustBeSharedAndIsNotTheJobEnds) {
  for (const auto& [first, second] :
       {std::pair(Link::kShm, Link::kGrpc), std::pair(Link::kGrpc, Link::kShm)}) {
    Stages links({first, second});
    for (int stage : {0, 1}) {
      absl::Status status = links.statuses()[stage];
      const Neighbour other = stage == 0 ? Neighbour::kBehind : Neighbour::kBefore;
      if (status.ok()) status = links[stage].Receive(other, {}, Soon()).status();
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr(absl::StrCat("rank ", first == Link::kShm ? 10 : 0, " at ")),
                        HasSubstr(" shares no memory with rank "),
                        HasSubstr(": it offers none; use --pipeline_link=grpc")));
    }
  }
  Stages either({Link::kAuto, Link::kGrpc});
  for (const absl::Status& status : either.statuses()) EXPECT_TRUE(status.ok()) << status;
  const TensorKey key = {TensorKey::kActivation, 1, 0};
  either[0].Send(Neighbour::kBehind, key, at::ones({3}));
  EXPECT_TRUE(either[1].Receive(Neighbour::kBefore, key, Soon()).ok());
  EXPECT_FALSE(either[0].SharesMemory(Neighbour::kBehind));
  EXPECT_FALSE(either[1].SharesMemory(Neighbour::kBefore));
}

OutgoingFrame HelloFrame(const proto::PeerHello& hello) {
  OutgoingFrame frame = FrameOf(proto::FrameHeader::HELLO);
  SetPayload(hello.SerializeAsString(), &frame);
  return frame;
}

// Hears nothing that it keeps.
class Stranger : public FrameSink {
 public:
  void OnFrame(const proto::FrameHeader&, Payload) override {}
  void OnClosed(absl::Status status) override {
    status_ = status;
    closed.Notify();
  }
  Notification closed;
  absl::Status status_;
};

// Whatever memory it offers: the first one's stays mapped, of which a tensor may just be read.
TEST(StageLinkMemoryTest, ASecondStageBeforeIsRefusedAndNothingOfTheFirstIsLost) {
  Stages links(2, Link::kShm);
  const auto stranger = std::make_shared<Stranger>();
  const auto ring = *TensorRingWriter::Create();
  proto::PeerHello hello;
  hello.set_rank(0);
  hello.set_fingerprint("same");
  proto::StageMemory memory;
  memory.set_host(ReadHostIdentity()->Key());
  memory.set_process(getpid());
  *memory.mutable_ring() = ring->Begin();
  hello.set_offer(memory.SerializeAsString());
  const auto stream = *links.link().Connect(links.AddressOf(1), 1, stranger, Soon());
  stream->Send(HelloFrame(hello));
  stranger->closed.WaitForNotification();
  EXPECT_THAT(std::string(stranger->status_.message()), HasSubstr("there is a stream already"));
  const TensorKey key = {TensorKey::kActivation, 1, 0};
  links[0].Send(Neighbour::kBehind, key, at::ones({3}));
  EXPECT_TRUE(links[1].Receive(Neighbour::kBefore, key, Soon()).ok());
  EXPECT_TRUE(links[1].SharesMemory(Neighbour::kBefore));
}

TEST(StageLinkErrorTest, WhatDoesNotComeIsNamedWithWhoOwesIt) {
  Stages links(2);
  const auto missing = links[0].Receive(Neighbour::kBehind, {TensorKey::kGradient, 4, 2},
                                        Deadline::In(absl::Milliseconds(20)));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(missing.status().message()),
              AllOf(HasSubstr("from rank 10 at "),
                    HasSubstr("the gradient of micro-batch 2 of step 4 did not come")));
  // The other stage hears of it at once, and by whom.
  const auto told =
      links[1].Receive(Neighbour::kBefore, {TensorKey::kActivation, 4, 2}, Soon()).status();
  EXPECT_EQ(told.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(told.message()), HasSubstr("rank 0 waited in vain: from rank 10 at "));
}

// So a stage counts as stuck where it computes, and not where it waits for another.
TEST(StageLinkErrorTest, WhoReceivesWaits) {
  Stages links(2);
  const Activity::Work step(&links.activity(0));
  EXPECT_TRUE(links.activity(0).working());
  std::thread receiver([&] {
    EXPECT_TRUE(links[0].Receive(Neighbour::kBehind, {TensorKey::kGradient, 1, 0}, Soon()).ok());
  });
  while (links.activity(0).working()) std::this_thread::yield();
  links[1].Send(Neighbour::kBefore, {TensorKey::kGradient, 1, 0}, at::ones({3}));
  receiver.join();
  EXPECT_TRUE(links.activity(0).working());
}

TEST(StageLinkErrorTest, ALostStageIsNamedOnAllOthersNeighboursOrNot) {
  Stages links(3);
  links.Lose(2);
  for (int stage : {0, 1}) {
    const auto failed =
        links[stage].Receive(Neighbour::kBehind, {TensorKey::kGradient, 1, 0}, Soon()).status();
    EXPECT_THAT(std::string(failed.message()), StartsWith("rank 20 at "));
  }
}

TEST(StageLinkErrorTest, AStageThatHangsUpWhileItIsConnectedToIsNamed) {
  const WorkerGroup group = GroupOf(0, 2, NewInMemoryStore());
  ASSERT_TRUE(group.store->Set(group.Key("stage/1/address"), "127.0.0.1:7", Soon()).ok());
  const auto resets =
      std::make_shared<FailingLink>(absl::UnavailableError("connection reset by peer"));
  StageLink link(group, resets, Link::kAuto, std::make_shared<Activity>());
  EXPECT_THAT(std::string(link.Connect("same", Soon()).message()),
              StartsWith("rank 10 at 127.0.0.1:7: connection reset"));
}

TEST(StageLinkErrorTest, AStageThatHalfClosesItsStreamWithoutGoodbyeIsLost) {
  for (const auto& over : {NewInProcessLink(), NewGrpcLink()}) {
    const WorkerGroup group = GroupOf(1, 2, NewInMemoryStore());
    StageLink link(group, over, Link::kGrpc, std::make_shared<Activity>());
    std::thread before([&] {
      const auto address = group.store->Get(group.Key("stage/1/address"), Soon());
      const auto heard = std::make_shared<Stranger>();
      const auto stream = *over->Connect(*address, 0, heard, Soon());
      proto::PeerHello hello;
      hello.set_rank(0);
      hello.set_fingerprint("same");
      hello.set_address("127.0.0.1:7");
      stream->Send(HelloFrame(hello));
      stream->Finish();
      heard->closed.WaitForNotification();
    });
    absl::Status failed = link.Connect("same", Soon());
    if (failed.ok()) {
      failed = link.Receive(Neighbour::kBefore, {TensorKey::kActivation, 1, 0}, Soon()).status();
    }
    EXPECT_THAT(std::string(failed.message()), StartsWith("rank 0 at 127.0.0.1:7 lost: "));
    before.join();
  }
}

TEST(StageLinkErrorTest, StagesThatDifferDoNotConnect) {
  Stages links(2, Link::kAuto, {"cut 3", "cut 4"});
  for (const absl::Status& status : links.statuses()) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("expected stages cut 4, found cut 3"));
  }
}

TEST_P(StageLinkTest, ATensorThatComesTwiceIsAnError) {
  Stages links(2, GetParam());
  const TensorKey key = {TensorKey::kActivation, 1, 0};
  links[0].Send(Neighbour::kBehind, key, at::randn({1}));
  links[0].Send(Neighbour::kBehind, key, at::randn({1}));
  const auto failed = links[0].Receive(Neighbour::kBehind, key, Soon()).status();
  EXPECT_THAT(std::string(failed.message()), HasSubstr("has come twice"));
}

TEST(LocalStagesTest, AFailureEndsWaitsAndWhatFollows) {
  LocalStages stages(3);
  std::thread waiting([&] {
    const auto failed = stages.channel(0).Receive(Neighbour::kBehind, {TensorKey::kGradient, 1, 0},
                                                  Deadline::Never());
    EXPECT_EQ(failed.status().message(), "first");
  });
  stages.Fail(absl::InternalError("first"));
  stages.Fail(absl::InternalError("second"));
  waiting.join();
  const auto later =
      stages.channel(2).Receive(Neighbour::kBefore, {TensorKey::kActivation, 1, 0}, Soon());
  EXPECT_EQ(later.status().message(), "first");
}

TEST(LocalStagesTest, ATensorIsHandedOverAsItLies) {
  LocalStages stages(2);
  const at::Tensor sent = at::randn({2, 3}).t().requires_grad_(true);
  stages.channel(0).Send(Neighbour::kBehind, {TensorKey::kActivation, 1, 0}, sent);
  const at::Tensor found =
      stages.channel(1).Receive(Neighbour::kBefore, {TensorKey::kActivation, 1, 0}, Soon()).value();
  EXPECT_EQ(found.data_ptr(), sent.data_ptr());
  EXPECT_EQ(found.strides(), sent.strides());
  EXPECT_FALSE(found.requires_grad());
}

TEST(StageStepErrorTest, WhatAStageThrowsIsItsErrorAndTheOthersHearOfTheJobs) {
  Stages links(2);
  const auto statuses = links.OnAll([&](int stage) {
    StageWork work;
    work.begin = [](int64_t) -> absl::StatusOr<at::Tensor> { return at::randn({2, 3}); };
    work.seed = [](int64_t) {};
    work.forward = [stage](const at::Tensor& x) {
      return stage == 0 ? x : at::matmul(x, at::randn({5, 5}));
    };
    work.objective = [](const at::Tensor& y) { return y.mean(); };
    work.figures = [] { return at::randn({1}); };
    work.backward = [](bool, const std::function<void()>& run) {
      run();
      return absl::OkStatus();
    };
    StageTimes times;
    const absl::Status status =
        RunStageStep(links[stage], PipelineSchedule::kGpipe, 1, 2, work, absl::Seconds(30), &times)
            .status();
    if (stage == 1) links[stage].Abort(status);
    return status;
  });
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("step 1, stage 1: LibTorch: "));
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 10 failed first: INTERNAL"));
}

TEST(PassTestBatchTest, BatchesPassAllStages) {
  Stages links(3);
  std::vector<at::Tensor> seen;
  const auto statuses = links.OnAll([&](int stage) {
    for (int64_t number = 0; number < 7; ++number) {
      const auto y = PassTestBatch(
          links[stage], number, at::randn({2}).fill_(static_cast<double>(number)),
          [](const at::Tensor& x) { return x + 1; }, absl::Seconds(30));
      if (!y.ok()) return y.status();
      if (stage == 2) seen.push_back(*y);
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) ASSERT_TRUE(status.ok()) << status;
  for (int64_t number = 0; number < 7; ++number) {
    EXPECT_EQ(seen[number][0].item<float>(), static_cast<float>(number + 3));
  }
}

}  // namespace
}  // namespace gradsync
