// What a ring does when frames are wrong and streams break: every rank fails soon, and says what
// was wrong and with whom.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/stream_test_util.h"
#include "core/links/tcp_stream.h"
#include "core/plan/kinds.h"
#include "core/plan/ring_schedule.h"
#include "core/plan/sharding.h"
#include "gtest/gtest.h"
#include "tests/rank_threads.h"
#include "tests/ring_group.h"
#include "tests/run_step.h"

namespace gradsync {
namespace {

using proto::FrameHeader;

// Is shown every frame before it is sent, with the stream that it goes to, and may change both.
using Tamper = std::function<void(OutgoingFrame& frame, FrameStream& stream)>;

class TamperedStream : public FrameStream {
 public:
  TamperedStream(std::shared_ptr<FrameStream> stream, Tamper tamper)
      : stream_(std::move(stream)), tamper_(std::move(tamper)) {}

  void Send(OutgoingFrame frame) override {
    tamper_(frame, *stream_);
    stream_->Send(std::move(frame));
  }
  void Finish() override { stream_->Finish(); }
  void Cancel(absl::Status reason) override { stream_->Cancel(std::move(reason)); }

 private:
  const std::shared_ptr<FrameStream> stream_;
  const Tamper tamper_;
};

class TamperedLink : public StreamLink {
 public:
  TamperedLink(std::shared_ptr<StreamLink> link, Tamper tamper)
      : link_(std::move(link)), tamper_(std::move(tamper)) {}

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    return link_->Listen(address, std::move(acceptor));
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    auto stream = link_->Connect(address, connection, std::move(sink), deadline);
    if (!stream.ok()) return stream.status();
    return std::make_shared<TamperedStream>(*std::move(stream), tamper_);
  }

 private:
  const std::shared_ptr<StreamLink> link_;
  const Tamper tamper_;
};

Plan SomePlan(int world_size) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {3000}, {1}, 0}, {"b", {5}, {1}, 0}}, {{0}, {1}}, optimizer,
                            world_size, 256);
}

StepOptions Step(int64_t number) {
  StepOptions step;
  step.step = number;
  return step;
}

// Three ranks; rank 1 sends through `tamper`. Returns how each rank's steps ended.
std::vector<absl::Status> RunTampered(std::shared_ptr<StreamLink> link, const Tamper& tamper,
                                      const BucketSlots& slots = BucketSlots()) {
  constexpr int kRanks = 3;
  RingOptions base;
  if (slots.parameters > 0) base.update_site = UpdateSite::kOwner;
  base.connections = 2;
  base.lead = 2;
  base.link = link;
  const RingGroup group(kRanks, base);
  const Plan plan = *SomePlan(kRanks).WithSlots(slots);
  std::vector<absl::Status> ends(kRanks);
  RunRanks(kRanks, [&](int rank) {
    RingOptions options = group.options(rank);
    if (rank == 1) options.link = std::make_shared<TamperedLink>(link, tamper);
    const std::unique_ptr<GradientSync> sync = *CreateRingGradientSync(options);
    const auto buckets = sync->Bind(plan, Soon());
    ASSERT_TRUE(buckets.ok()) << buckets.status();
    for (int64_t s = 1; s <= 3 && ends[rank].ok(); ++s) ends[rank] = RunStep(*sync, plan, Step(s));
    EXPECT_EQ(sync->status(), ends[rank]);
    EXPECT_FALSE(sync->Launch(Step(4), 0).Wait(Soon()).ok());
    EXPECT_FALSE(sync->Shutdown(Soon()).ok());
  });
  return ends;
}

// Where rank 2 stands in the gather of the frame's chunk: 0 where the gather begins with it.
int GatherHopOfRankTwo(const FrameHeader& header) {
  return GatherHop(static_cast<int>(header.slot()) % 3, 2, 3);
}

// Changes the third REDUCE frame, when the ring is well under way. Frames that belong to rank 2 are
// left alone: it refuses parameters for those with other words.
Tamper Third(const std::function<void(OutgoingFrame&, FrameStream&)>& change) {
  auto count = std::make_shared<std::atomic<int>>(0);
  return [=](OutgoingFrame& frame, FrameStream& stream) {
    if (frame.header.kind() != FrameHeader::REDUCE || GatherHopOfRankTwo(frame.header) == 0) return;
    if (++*count == 3) change(frame, stream);
  };
}

void ExpectRankTwoRefuses(const std::function<void(OutgoingFrame&, FrameStream&)>& change,
                          const std::string& why, const BucketSlots& slots = BucketSlots()) {
  const std::vector<absl::Status> ends = RunTampered(NewInProcessLink(), Third(change), slots);
  EXPECT_TRUE(absl::IsInvalidArgument(ends[2]) || absl::IsFailedPrecondition(ends[2])) << ends[2];
  EXPECT_TRUE(absl::StrContains(ends[2].message(), "from rank 1 at 127.0.0.1:")) << ends[2];
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(absl::StrContains(ends[rank].message(), why)) << ends[rank];
    if (rank == 2) continue;
    EXPECT_TRUE(absl::IsAborted(ends[rank])) << ends[rank];
    EXPECT_TRUE(absl::StrContains(ends[rank].message(), "rank 2 failed first")) << ends[rank];
  }
}

TEST(RingFailureTest, AFrameWithAWrongHopFailsTheGroup) {
  ExpectRankTwoRefuses(
      [](OutgoingFrame& frame, FrameStream&) { frame.header.set_hop(frame.header.hop() + 1); },
      "expected hop");
}

TEST(RingFailureTest, AFrameOfAnUnknownBucketFailsTheGroup) {
  ExpectRankTwoRefuses([](OutgoingFrame& frame, FrameStream&) { frame.header.set_bucket(77); },
                       "expected a bucket below 2");
}

TEST(RingFailureTest, ATruncatedPayloadFailsTheGroup) {
  ExpectRankTwoRefuses([](OutgoingFrame& frame, FrameStream&) { frame.payload.remove_suffix(3); },
                       "expected bytes of payload");
}

TEST(RingFailureTest, AFrameOfAnotherKindFailsTheGroup) {
  ExpectRankTwoRefuses(
      [](OutgoingFrame& frame, FrameStream&) { frame.header.set_kind(FrameHeader::PUSH); },
      "not a frame of the ring");
}

// Its bytes would overwrite memory that another bucket computes with.
TEST(RingFailureTest, AParameterThatNobodyAskedForFailsTheGroup) {
  BucketSlots slots;
  slots.parameters = 1;
  ExpectRankTwoRefuses(
      [](OutgoingFrame& frame, FrameStream&) {
        frame.header.set_kind(FrameHeader::GATHER);
        frame.header.set_hop(GatherHopOfRankTwo(frame.header));
      },
      "expected none, for owners alone keep parameters", slots);
}

TEST(RingFailureTest, AFrameOfAnOldStepFailsTheGroup) {
  ExpectRankTwoRefuses([](OutgoingFrame& frame, FrameStream&) { frame.header.set_step(0); },
                       "a step of at least 1");
}

TEST(RingFailureTest, AFrameThatComesTwiceFailsTheGroup) {
  ExpectRankTwoRefuses(
      [](OutgoingFrame& frame, FrameStream& stream) {
        OutgoingFrame copy;
        copy.header = frame.header;
        copy.payload = frame.payload;
        stream.Send(std::move(copy));
      },
      "came twice");
}

TEST(RingFailureTest, ALostStreamFailsEveryRankAndIsNamed) {
  for (const auto& link : {NewInProcessLink(), NewGrpcLink(), NewTcpLink()}) {
    const std::vector<absl::Status> ends =
        RunTampered(link, Third([](OutgoingFrame&, FrameStream& stream) {
                      stream.Cancel(absl::InternalError("the cable was pulled"));
                    }));
    int first = 0;
    for (const absl::Status& end : ends) {
      EXPECT_TRUE(absl::IsUnavailable(end) || absl::IsAborted(end)) << end;
      EXPECT_TRUE(absl::StrContains(end.message(), " at 127.0.0.1:")) << end;
      EXPECT_EQ(end.message(), ends[0].message());
      first += absl::IsUnavailable(end);
    }
    EXPECT_GE(first, 1) << "somebody saw it";
  }
}

TEST(RingFailureTest, ARankThatHalfClosesAStreamWithoutGoodbyeIsLost) {
  for (const auto& link : {NewInProcessLink(), NewGrpcLink(), NewTcpLink()}) {
    const std::vector<absl::Status> ends =
        RunTampered(link, Third([](OutgoingFrame&, FrameStream& stream) { stream.Finish(); }));
    EXPECT_TRUE(absl::IsUnavailable(ends[2])) << ends[2];
    for (const absl::Status& end : ends) {
      EXPECT_TRUE(absl::StrContains(end.message(), "rank 1 at 127.0.0.1:")) << end;
    }
  }
}

TEST(RingFailureTest, DifferentOptionsAreFoundByBind) {
  RingOptions base;
  base.link = NewInProcessLink();
  const RingGroup group(2, base);
  RunRanks(2, [&](int rank) {
    RingOptions options = group.options(rank);
    options.lead = 4 + rank;
    const std::unique_ptr<GradientSync> sync = *CreateRingGradientSync(options);
    const absl::Status bound = sync->Bind(SomePlan(2), Soon()).status();
    EXPECT_EQ(bound.code(), absl::StatusCode::kFailedPrecondition) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "lead 4")) << bound;
    EXPECT_TRUE(absl::StrContains(bound.message(), "lead 5")) << bound;
  });
}

TEST(RingFailureTest, ARankThatNeverComesIsNamedAtTheDeadline) {
  RingOptions base;
  base.link = NewInProcessLink();
  const RingGroup group(2, base);
  const std::unique_ptr<GradientSync> sync = group.Create(0);
  const absl::Status bound = sync->Bind(SomePlan(2), Deadline::In(absl::Milliseconds(50))).status();
  EXPECT_EQ(bound.code(), absl::StatusCode::kDeadlineExceeded) << bound;
  EXPECT_TRUE(absl::StrContains(bound.message(), "1")) << bound;
}

// Who ends before it could say so itself, for one.
TEST(RingFailureTest, ARankThatHangsUpWhileOthersConnectIsNamedByAll) {
  RingOptions base;
  base.link = NewInProcessLink();
  const RingGroup group(2, base);
  // Without a failure timeout an address at which nobody listens any more is tried until the deadline.
  std::vector<std::unique_ptr<GradientSync>> syncs(2);
  RunRanks(2, [&](int rank) {
    RingOptions options = group.options(rank);
    if (rank == 0) {
      options.link = std::make_shared<FailingLink>(
          absl::UnavailableError("connection reset by peer"), options.link);
    }
    syncs[rank] = *CreateRingGradientSync(options);
    const absl::Status bound = syncs[rank]->Bind(SomePlan(2), Soon()).status();
    EXPECT_TRUE(absl::StartsWith(bound.message(), "rank 1 at 127.0.0.1:")) << bound;
  });
}

// Sums of squares that came while a rank connected were passed on over streams that were not there,
// and the rank crashed.
TEST(RingFailureTest, AFrameBeforeAllAreConnectedFailsTheGroup) {
  constexpr int kRanks = 3;
  std::atomic<int> refused{0};
  for (const FrameHeader::Kind kind :
       {FrameHeader::SQUARES, FrameHeader::REDUCE, FrameHeader::GATHER, FrameHeader::PARAMETERS,
        FrameHeader::CREDIT}) {
    SCOPED_TRACE(FrameHeader::Kind_Name(kind));
    RingOptions base;
    base.update_site = UpdateSite::kOwner;
    base.connections = 2;  // so that rank 2 still waits for the second when the frame comes
    base.link = NewInProcessLink();
    const RingGroup group(kRanks, base);
    const Plan plan = SomePlan(kRanks);
    const double squares[1] = {1};
    const Tamper tamper = [&](OutgoingFrame& frame, FrameStream& stream) {
      if (frame.header.kind() != FrameHeader::HELLO) return;
      stream.Send(std::move(frame));
      frame = OutgoingFrame();
      frame.header.set_kind(kind);
      frame.header.set_slot(1);
      frame.header.set_hop(1);
      frame.header.set_step(1);
      if (kind != FrameHeader::SQUARES) return;
      frame.payload = absl::MakeConstSpan(reinterpret_cast<const char*>(squares), sizeof(squares));
    };
    RunRanks(kRanks, [&](int rank) {
      RingOptions options = group.options(rank);
      if (rank == 1) options.link = std::make_shared<TamperedLink>(base.link, tamper);
      const std::unique_ptr<GradientSync> sync = *CreateRingGradientSync(options);
      const absl::Status bound = sync->Bind(plan, Soon()).status();
      if (bound.ok()) return;  // the frame came when all were connected, which is no fault yet
      ++refused;
      EXPECT_TRUE(absl::StrContains(bound.message(), "from rank 1 at ")) << bound;
      EXPECT_TRUE(
          absl::StrContains(bound.message(), "expected nothing before all ranks are connected"))
          << bound;
    });
  }
  EXPECT_GE(refused, kRanks);
}

class Deaf : public FrameSink {
 public:
  void OnFrame(const FrameHeader&, Payload) override {}
  void OnClosed(absl::Status) override {}
};

TEST(RingFailureTest, StrangersAreTurnedAwayAndDisturbNobody) {
  RingOptions base;
  base.link = NewInProcessLink();
  const RingGroup group(2, base);
  const Plan plan = SomePlan(2);
  RunRanks(2, [&](int rank) {
    const std::unique_ptr<GradientSync> sync = group.Create(rank);
    ASSERT_TRUE(sync->Bind(plan, Soon()).ok());
    const auto address = group.options(rank).group.store->Get(
        group.options(rank).group.Key(absl::StrCat("ring/", 1 - rank, "/address")), Soon());
    ASSERT_TRUE(address.ok());
    for (FrameHeader::Kind kind : {FrameHeader::HELLO, FrameHeader::REDUCE}) {
      const auto stranger = base.link->Connect(*address, 9, std::make_shared<Deaf>(), Soon());
      ASSERT_TRUE(stranger.ok()) << stranger.status();
      OutgoingFrame frame;
      frame.header.set_kind(kind);
      (*stranger)->Send(std::move(frame));
    }
    for (int64_t s = 1; s <= 3; ++s) EXPECT_EQ(RunStep(*sync, plan, Step(s)), absl::OkStatus());
    EXPECT_EQ(sync->Shutdown(Soon()), absl::OkStatus());
  });
}

TEST(RingFailureTest, OptionsOutOfRangeAreRefused) {
  RingOptions base;
  base.link = NewInProcessLink();
  const RingGroup group(2, base);
  RingOptions options = group.options(0);
  options.lead = 0;
  EXPECT_EQ(CreateRingGradientSync(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = group.options(0);
  options.group.rank = 2;
  EXPECT_EQ(CreateRingGradientSync(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = group.options(0);
  options.link = nullptr;
  EXPECT_EQ(CreateRingGradientSync(options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gradsync
