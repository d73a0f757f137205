#include "ps_server/server.h"

#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/sanitizers.h"
#include "core/links/frames.h"
#include "core/links/in_process_stream.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "gtest/gtest.h"
#include "ps_server/raw_worker.h"

namespace gradsync {
namespace {

using Kind = proto::FrameHeader;

Plan TwoWorkers(double momentum = 0.9) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = momentum;
  return *Plan::FromBuckets({{"a", {200}, {1}, 0}}, {{0}}, optimizer, 2, /*chunk_bytes=*/64);
}

StepOptions Step(int64_t number, double lr = 0.1) {
  StepOptions step;
  step.step = number;
  step.lr = lr;
  return step;
}

class ServerTest : public testing::Test {
 protected:
  explicit ServerTest(absl::Duration timeout = absl::Seconds(30)) {
    ServerOptions options;
    options.link = link_;
    options.timeout = timeout;
    options.limits.max_memory = 64 << 20;
    options.run_id = "test";
    server_ = *ParameterServer::Start(options);
  }

  // Two workers that are welcome.
  void Begin(int credit = 2) {
    for (int rank : {0, 1}) {
      workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
      proto::Hello hello = RawStream::HelloFor(plan_, rank);
      hello.mutable_terms()->set_credit(credit);
      workers_[rank]->SayHello(hello);
    }
    for (int rank : {0, 1}) {
      ASSERT_TRUE(workers_[rank]->Await(Kind::HELLO).has_value());
      orders_.push_back(PushOrder(plan_, *ShardMap::Create(plan_, {1}), 0, rank));
    }
  }

  size_t Bytes(ChunkId id) const {
    return 4 * plan_.buckets()[id.bucket].layout.range(id.slot).size();
  }

  // Every worker and the server's own end hear the same.
  void ExpectRunFails(absl::StatusCode code, const std::vector<std::string>& texts) {
    for (auto& worker : workers_) {
      if (worker != nullptr) ExpectStatus(worker->AwaitFailure(), code, texts);
    }
    workers_.clear();
    ExpectStatus(server_->Wait(), code, texts);
  }

  static void ExpectStatus(const absl::Status& status, absl::StatusCode code,
                           const std::vector<std::string>& texts) {
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& text : texts) {
      EXPECT_TRUE(absl::StrContains(status.message(), text)) << status << "\nlacks " << text;
    }
  }

  const Plan plan_ = TwoWorkers();
  const std::shared_ptr<StreamLink> link_ = NewInProcessLink();
  std::unique_ptr<ParameterServer> server_;
  std::vector<std::unique_ptr<RawStream>> workers_;
  std::vector<std::vector<ChunkId>> orders_;
};

TEST_F(ServerTest, APushOutOfOrderFailsTheRunSayingWhatWasExpected) {
  Begin();
  workers_[1]->Push(orders_[1][1], Step(1), Bytes(orders_[1][1]));
  ExpectRunFails(absl::StatusCode::kInvalidArgument,
                 {"rank 1 (10.0.0.1)", "expected bucket 0 slot 0", "found bucket 0 slot 1"});
}

TEST_F(ServerTest, APushWithoutCreditFailsTheRun) {
  Begin();
  // Rank 0 waits for rank 1's turn in chunk 0 of each stripe, so credit runs out.
  const std::vector<ChunkId>& order = orders_[0];
  for (ChunkId id : order) workers_[0]->Push(id, Step(1), Bytes(id));
  ExpectRunFails(absl::StatusCode::kInvalidArgument, {"rank 0", "at most 2 chunks", "found 3"});
}

TEST_F(ServerTest, CreditComesBackByHalfWindows) {
  Begin(/*credit=*/6);
  // Two pushes of each worker make a stripe. The third, the first of its chunk, is folded with the
  // fourth of the other worker.
  const int ends[] = {0, 4, 6};
  for (int half = 0; half < 2; ++half) {
    for (int rank : {0, 1}) {
      for (int i = ends[half]; i < ends[half + 1]; ++i) {
        const ChunkId id = orders_[rank][i];
        workers_[rank]->Push(id, Step(1), Bytes(id));
      }
    }
    const absl::optional<proto::FrameHeader> credit = workers_[0]->Await(Kind::CREDIT);
    ASSERT_TRUE(credit.has_value());
    EXPECT_EQ(credit->count(), 3u);
  }
  workers_.clear();
}

TEST_F(ServerTest, APushOfAnotherSizeFailsTheRun) {
  Begin();
  workers_[0]->Push(orders_[0][0], Step(1), 12);
  ExpectRunFails(absl::StatusCode::kInvalidArgument, {"rank 0", "expected 64 bytes", "found 12"});
}

TEST_F(ServerTest, LearningRatesThatDifferFailTheRunNamingRanksAndValues) {
  Begin();
  workers_[0]->Push(orders_[0][0], Step(1, 0.1), Bytes(orders_[0][0]));
  ASSERT_TRUE(workers_[1] != nullptr);
  workers_[1]->Push(orders_[1][0], Step(1, 0.2), Bytes(orders_[1][0]));
  ExpectRunFails(
      absl::StatusCode::kInvalidArgument,
      {"ranks disagree", "rank 0 pushed step 1, lr 0.1", "rank 1 pushed step 1, lr 0.2"});
}

TEST_F(ServerTest, FramesThatWorkersDoNotSendFailTheRun) {
  Begin();
  proto::FrameHeader header;
  header.set_kind(Kind::PULL);
  workers_[0]->Send(header, "");
  ExpectRunFails(absl::StatusCode::kInvalidArgument, {"rank 0", "PULL"});
}

TEST_F(ServerTest, ParametersFromAnotherRankThanZeroFailTheRun) {
  Begin();
  proto::FrameHeader header;
  header.set_kind(Kind::PARAMETERS);
  workers_[1]->Send(header, std::string(64, 'x'));
  ExpectRunFails(absl::StatusCode::kInvalidArgument, {"rank 1", "from rank 0 only"});
}

TEST_F(ServerTest, ALostWorkerIsNamedToTheOthers) {
  Begin();
  workers_[1]->Cancel();
  workers_[1] = nullptr;
  ExpectRunFails(absl::StatusCode::kUnavailable, {"rank 1 (10.0.0.1) lost"});
}

TEST_F(ServerTest, ALeaverInTheMiddleOfAStepFailsTheRun) {
  Begin();
  workers_[0]->Push(orders_[0][0], Step(1), Bytes(orders_[0][0]));
  proto::FrameHeader header;
  header.set_kind(Kind::GOODBYE);
  workers_[0]->Send(header, "");
  ExpectRunFails(absl::StatusCode::kInvalidArgument, {"rank 0", "middle of a step"});
}

TEST_F(ServerTest, PlansThatDifferAreNamedByBothFingerprints) {
  const Plan other = TwoWorkers(0.8);
  for (int rank : {0, 1}) {
    workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
    workers_[rank]->SayHello(RawStream::HelloFor(rank == 0 ? plan_ : other, rank));
  }
  ExpectRunFails(absl::StatusCode::kFailedPrecondition, {plan_.fingerprint(), other.fingerprint()});
}

TEST_F(ServerTest, TermsThatDifferFailTheRun) {
  for (int rank : {0, 1}) {
    workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
    proto::Hello hello = RawStream::HelloFor(plan_, rank);
    if (rank == 1) hello.mutable_terms()->set_credit(3);
    workers_[rank]->SayHello(hello);
  }
  ExpectRunFails(absl::StatusCode::kInvalidArgument,
                 {"workers differ: credit: rank ", "rank 0 has 2", "rank 1 has 3"});
}

// Two lists of as many weights as there may be were the message.
TEST_F(ServerTest, OfLongTermsThatDifferOneValueIsSaid) {
  for (int rank : {0, 1}) {
    workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
    proto::Hello hello = RawStream::HelloFor(plan_, rank);
    hello.set_number(3 + rank);
    hello.mutable_terms()->mutable_weights()->Resize(1 << 16, 1);
    hello.mutable_terms()->set_weights(65535, 1 + rank);
    workers_[rank]->SayHello(hello);
  }
  const absl::Status told = workers_[0]->AwaitFailure();
  ExpectStatus(told, absl::StatusCode::kInvalidArgument,
               {"workers differ: weights[65535]: rank ", "rank 2 has 1", "rank 3 has 2"});
  EXPECT_LT(told.message().size(), 100u);
  workers_.clear();
}

TEST_F(ServerTest, StrangersAreTurnedAwayAlone) {
  proto::Hello other_run = RawStream::HelloFor(plan_, 0);
  other_run.set_run_id("other");
  proto::Hello no_rank = RawStream::HelloFor(plan_, 2);
  proto::Hello wide = RawStream::HelloFor(plan_, 0);
  wide.mutable_terms()->set_connections(1 << 30);
  proto::Hello no_site = RawStream::HelloFor(plan_, 0);
  no_site.mutable_terms()->clear_update_site();
  proto::Hello nameless = RawStream::HelloFor(plan_, 0);  // servers that share memory
  nameless.mutable_terms()->set_windows(true);
  for (const proto::Hello& hello : {other_run, no_rank, wide, no_site, nameless}) {
    RawStream stranger(*link_, server_->address());
    stranger.SayHello(hello);
    EXPECT_FALSE(stranger.AwaitFailure().ok()) << hello.ShortDebugString();
  }
  RawStream rude(*link_, server_->address());
  rude.Push({0, 0}, Step(1), 64);
  ExpectStatus(rude.AwaitFailure(), absl::StatusCode::kInvalidArgument, {"expected HELLO"});
  RawStream garbled(*link_, server_->address());
  proto::FrameHeader header;
  header.set_kind(Kind::HELLO);
  garbled.Send(header, "\xff\xff\xff");
  ExpectStatus(garbled.AwaitFailure(), absl::StatusCode::kInvalidArgument, {"not a Hello"});
  Begin();
  RawStream second(*link_, server_->address());
  second.SayHello(RawStream::HelloFor(plan_, 1));
  ExpectStatus(second.AwaitFailure(), absl::StatusCode::kFailedPrecondition, {"already"});
  for (int rank : {0, 1}) {
    header.set_kind(Kind::GOODBYE);
    workers_[rank]->Send(header, "");
    EXPECT_TRUE(workers_[rank]->Await(Kind::GOODBYE).has_value());
  }
  workers_.clear();
  EXPECT_EQ(server_->Wait(), absl::OkStatus());
}

// The server indexed its workers by the rank of a hello that it had refused: a read out of bounds.
TEST_F(ServerTest, ARankOutsideTheRunEndsItBeforeItsBeginAndIsInNoPlaceOfIt) {
  workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
  workers_[0]->SayHello(RawStream::HelloFor(plan_, 0));
  RawStream stranger(*link_, server_->address());
  proto::Hello hello = RawStream::HelloFor(plan_, 65535);
  hello.mutable_terms()->set_world_size(65536);
  hello.mutable_terms()->set_connections(2);
  hello.set_connection(1);  // on which no plan is expected that the terms could contradict
  // Whichever comes first, the numbers of workers differ.
  stranger.SayHello(hello);
  stranger.Push({0, 0}, Step(1), 64);
  ExpectStatus(stranger.AwaitFailure(), absl::StatusCode::kInvalidArgument, {"65535"});
  stranger.Cancel();
  ExpectRunFails(absl::StatusCode::kInvalidArgument, {"65535"});
}

// The first hello is what a server that was told nothing goes by: one whose plan was not that of its
// own terms ended the run before a worker had come, and servers that were to keep the parameters
// alone, with an update at the workers, crashed when they were asked for them.
TEST(UntoldServerTest, AHelloThatContradictsItselfIsRefusedAloneAndTheJobGoesOn) {
  const std::shared_ptr<StreamLink> link = NewInProcessLink();
  const Plan plan = TwoWorkers();
  const auto compressing = [](const Codec& codec) {
    OptimizerSpec optimizer;
    optimizer.groups.resize(1);
    return *Plan::FromBuckets({{"a", {200}, {1}, 0}}, {{0}}, optimizer, 2, 64, codec);
  };
  BucketSlots alone;
  alone.parameters = 1;
  const Plan kept = *plan.WithSlots(alone);
  const Plan rounded = compressing(*ParseCodec("fp16"));
  const auto changed = [](const Plan& base, const std::function<void(proto::Hello&)>& change) {
    proto::Hello hello = RawStream::HelloFor(base, 1);
    hello.set_run_id("of a stranger");
    change(hello);
    return hello;
  };
  const std::pair<proto::Hello, std::string> strangers[] = {
      {changed(plan, [](auto& h) { h.mutable_terms()->set_fingerprint("0123456789abcdef"); }),
       "with fingerprint 0123456789abcdef"},
      {changed(plan, [](auto& h) { h.mutable_terms()->set_world_size(3); }),
       "expected a plan for 3 workers"},
      {changed(plan, [](auto& h) { h.mutable_plan()->set_chunk_bytes(128); }), "fingerprint"},
      {changed(plan, [](auto& h) { h.clear_plan(); }), "plan message"},
      {changed(plan, [](auto& h) { h.add_numbers(1); }), "numbers: expected 2 or none, found 1"},
      {changed(plan, [](auto& h) { h.set_rank(2); }), "rank: expected 0 to 1, found 2"},
      {changed(plan, [](auto& h) { h.set_connection(1); }), "connection: expected 0 to 0"},
      {changed(plan, [](auto& h) { h.mutable_terms()->set_server_index(1); }), "server_index"},
      {changed(plan, [](auto& h) { h.mutable_terms()->clear_weights(); }), "number of weights"},
      {changed(plan,
               [](auto& h) {
                 h.mutable_terms()->set_windows(true);
                 for (const char* address : {"a:1", "b:1"}) h.add_servers(address);
               }),
       "number of servers: expected 1 to 1, found 2"},
      {changed(rounded,
               [](auto& h) {
                 h.mutable_terms()->set_consistency("asp");
                 h.mutable_terms()->set_update_site(proto::OWNER);
               }),
       "under asp"},
      {changed(rounded,
               [](auto& h) {
                 h.mutable_terms()->set_windows(true);
                 h.add_servers("a:1");
               }),
       "no wire"},
      {changed(kept, [](auto&) {}), "update at the worker under bsp"},
      {changed(kept,
               [](auto& h) {
                 h.mutable_terms()->set_consistency("ssp:1");
                 h.mutable_terms()->set_update_site(proto::OWNER);
               }),
       "update at the owner under ssp:1"},
  };
  ServerOptions options;
  options.link = link;
  const std::unique_ptr<ParameterServer> server = *ParameterServer::Start(options);
  for (const auto& [hello, text] : strangers) {
    RawStream stranger(*link, server->address());
    stranger.SayHello(hello);
    const absl::Status refused = stranger.AwaitFailure();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), text)) << refused << "\nlacks " << text;
  }
  std::vector<std::unique_ptr<RawStream>> workers;
  for (int rank : {0, 1}) {
    workers.push_back(std::make_unique<RawStream>(*link, server->address()));
    workers[rank]->SayHello(RawStream::HelloFor(plan, rank));
  }
  proto::FrameHeader header;
  header.set_kind(Kind::GOODBYE);
  for (const auto& worker : workers) {
    ASSERT_TRUE(worker->Await(Kind::HELLO).has_value());
    worker->Send(header, "");
    EXPECT_TRUE(worker->Await(Kind::GOODBYE).has_value());
  }
  workers.clear();
  EXPECT_EQ(server->Wait(), absl::OkStatus());
}

// Any hello of a stranger with other terms ended the job of those who were training.
TEST_F(ServerTest, AHelloAfterTheBeginIsRefusedAloneWhateverItSays) {
  Begin();
  proto::Hello hello = RawStream::HelloFor(plan_, 1);
  hello.mutable_terms()->set_connections(5);
  hello.set_connection(4);
  RawStream stranger(*link_, server_->address());
  stranger.SayHello(hello);
  stranger.Push({0, 0}, Step(1), 64);
  ExpectStatus(stranger.AwaitFailure(), absl::StatusCode::kFailedPrecondition,
               {"all of its 2 workers already", "rank 1 of 2, connection 4"});
  stranger.Cancel();
  proto::FrameHeader header;
  header.set_kind(Kind::GOODBYE);
  for (int rank : {0, 1}) {
    workers_[rank]->Send(header, "");
    EXPECT_TRUE(workers_[rank]->Await(Kind::GOODBYE).has_value());
  }
  workers_.clear();
  EXPECT_EQ(server_->Wait(), absl::OkStatus());
}

// A hello of 124 bytes made the server allocate 7.6 GB, one of 2^36 elements all that there was.
TEST_F(ServerTest, APlanBeyondTheMemoryIsRefusedAloneBeforeItsGroupBegins) {
  OptimizerSpec optimizer;
  optimizer.kind = OptimizerKind::kAdam;
  optimizer.groups.resize(1);
  for (const int64_t elements : {int64_t{1} << 24, int64_t{1} << 35}) {
    const absl::StatusOr<Plan> plan =
        Plan::FromBuckets({{"a", {elements}, {1}, 0}}, {{0}}, optimizer, 1, 1 << 20);
    ASSERT_TRUE(plan.ok()) << plan.status();
    RawStream stranger(*link_, server_->address());
    stranger.SayHello(RawStream::HelloFor(*plan, 0));
    ExpectStatus(stranger.AwaitFailure(), absl::StatusCode::kResourceExhausted,
                 {"rank 0", "--max_memory", "67108864"});
  }
  // Few elements in many chunks.
  const absl::StatusOr<Plan> cut =
      Plan::FromBuckets({{"a", {960000}, {1}, 0}}, {{0}}, optimizer, 4, /*chunk_bytes=*/64);
  ASSERT_TRUE(cut.ok()) << cut.status();
  RawStream stranger(*link_, server_->address());
  stranger.SayHello(RawStream::HelloFor(*cut, 3));
  ExpectStatus(stranger.AwaitFailure(), absl::StatusCode::kResourceExhausted, {"rank 3"});
  Begin();
  workers_.clear();
}

// Two bytes of a hello made a tensor of a hundred, before anything was checked.
TEST_F(ServerTest, AHelloWhoseEntriesTakeMoreThanTheMemoryIsRefusedAlone) {
  const std::string good = RawStream::HelloFor(plan_, 0).SerializeAsString();
  const auto entries = [](const std::string& entry, size_t bytes) {
    std::string all;
    while (all.size() < bytes) all += entry;
    return all;
  };
  // A field of a number below 16 that has `bytes`.
  const auto field = [](int number, const std::string& bytes) {
    std::string whole(1, static_cast<char>(number << 3 | 2));
    google::protobuf::io::StringOutputStream stream(&whole);
    google::protobuf::io::CodedOutputStream out(&stream);
    out.WriteVarint32(bytes.size());
    out.WriteString(bytes);
    out.Trim();
    return whole;
  };
  const int plan = proto::Hello::kPlanFieldNumber;
  const std::string tensor = field(proto::Plan::kTensorsFieldNumber, "");
  proto::FrameHeader header;
  header.set_kind(Kind::HELLO);
  for (const std::string& many : {
           field(plan, entries(tensor, 1 << 20)), entries(field(plan, tensor), 2 << 20),
           field(plan, entries(field(proto::Plan::kBucketsFieldNumber, ""), 1 << 20)),
           field(plan,
                 field(proto::Plan::kTensorsFieldNumber,
                       field(proto::TensorSpec::kSizesFieldNumber, std::string(5 << 20, '\1')))),
           entries(field(proto::Hello::kServersFieldNumber, ""), 4 << 20),
           entries(field(15, ""), 4 << 20),  // unknown
           entries("\x7b\x7c", 2 << 20),     // groups
       }) {
    SCOPED_TRACE(many.size());
    RawStream stranger(*link_, server_->address());
    stranger.Send(header, good + many);
    ExpectStatus(stranger.AwaitFailure(), absl::StatusCode::kResourceExhausted,
                 {"hello", "expected at most 67108864 bytes of memory"});
  }
  Begin();
  workers_.clear();
}

TEST_F(ServerTest, LongTextsAreRefusedAloneInAShortMessage) {
  const std::string text(10 << 20, 'x');
  std::vector<proto::Hello> hellos(5, RawStream::HelloFor(plan_, 0));
  hellos[0].set_address(text);
  hellos[1].set_run_id(text);
  hellos[2].mutable_terms()->set_fingerprint(text);
  hellos[3].mutable_plan()->mutable_tensors(0)->set_name(text);
  hellos[4].mutable_plan()->mutable_optimizer()->set_kind(text);
  for (const proto::Hello& hello : hellos) {
    RawStream stranger(*link_, server_->address());
    stranger.SayHello(hello);
    const absl::Status refused = stranger.AwaitFailure();
    ExpectStatus(refused, absl::StatusCode::kInvalidArgument, {"hello", "10485760"});
    EXPECT_LT(refused.message().size(), 200u);
  }
  Begin();
  proto::FrameHeader failed;
  failed.set_kind(Kind::FAILED);
  failed.mutable_error()->set_code(13);
  failed.mutable_error()->set_message(text);
  workers_[1]->Send(failed, "");
  const absl::Status told = workers_[0]->AwaitFailure();
  ExpectStatus(told, absl::StatusCode::kAborted, {"rank 1 (10.0.0.1)", "xxx..."});
  EXPECT_LT(told.message().size(), 5000u);
  workers_.clear();
}

// Of a worker that only hung up the server said that it was lost.
TEST_F(ServerTest, WhoFailedFirstIsBelievedOfAWorkerThatLeavesBeforeTheRunBegins) {
  RawStream worker(*link_, server_->address());
  worker.SayHello(RawStream::HelloFor(plan_, 1));
  worker.Send(FailedHeader(absl::AbortedError("rank 0 failed first: no file descriptors left")),
              "");
  const absl::Status end = server_->Wait();
  EXPECT_EQ(end.message(), "rank 0 failed first: no file descriptors left");
}

// In the middle of a step too: the store that knows may have ended before the server could ask it.
TEST_F(ServerTest, WhoFailedFirstIsBelievedOfAWorkerThatLeavesInAStep) {
  Begin();
  workers_[1]->Send(FailedHeader(absl::AbortedError("rank 7 lost: no sign of life")), "");
  workers_[1]->Finish();
  ExpectRunFails(absl::StatusCode::kAborted, {"rank 7 lost: no sign of life"});
}

// Which is no failure of its own.
TEST_F(ServerTest, AWorkerThatWaitedInVainIsNotBlamed) {
  Begin();
  workers_[1]->Send(FailedHeader(absl::DeadlineExceededError("bucket 0 of step 1 did not come")),
                    "");
  workers_[1]->Finish();
  ExpectRunFails(
      absl::StatusCode::kAborted,
      {"nobody is known to have failed, but rank 1 (10.0.0.1) waited in vain: bucket 0"});
}

TEST_F(ServerTest, StepsThatNobodyCanTrainWithFailTheRun) {
  const double infinite = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<const char*, StepOptions> steps[] = {
      {"lr", {1, infinite, 0, 1}},
      {"lr", {1, nan, 0, 1}},
      {"lr", {1, -0.1, 0, 1}},
      {"max_norm", {1, 0.1, -1, 1}},
      {"max_norm", {1, 0.1, nan, 1}},
      {"inverse_loss_scale", {1, 0.1, 0, 0}},  // as in a message that does not set it
      {"inverse_loss_scale", {1, 0.1, 0, infinite}},
      {"step", {0, 0.1, 0, 1}},
      {"step", {-3, 0.1, 0, 1}},
  };
  for (const auto& [field, step] : steps) {
    SCOPED_TRACE(DescribeStep(step));
    ServerOptions options;
    options.link = link_;
    server_ = *ParameterServer::Start(options);
    orders_.clear();
    Begin();
    workers_[0]->Push(orders_[0][0], step, Bytes(orders_[0][0]));
    ExpectRunFails(absl::StatusCode::kInvalidArgument, {"rank 0", field, "expected", "found"});
  }
}

// The worker whose frame came when the server had no memory was blamed.
TEST(OwnFaultTest, AServerWithoutMemoryBlamesNoWorker) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer's allocator needs room of its own";
  const std::shared_ptr<StreamLink> link = NewInProcessLink();
  ServerOptions options;
  options.link = link;
  options.run_id = "test";
  const std::unique_ptr<ParameterServer> server = *ParameterServer::Start(options);
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  optimizer.groups[0].momentum = 0.9;
  constexpr int64_t kElements = int64_t{1} << 24;
  const Plan plan =
      *Plan::FromBuckets({{"a", {kElements}, {1}, 0}}, {{0}}, optimizer, 1, int64_t{16} << 20);
  RawStream worker(*link, server->address());
  proto::Hello hello = RawStream::HelloFor(plan, 0);
  hello.mutable_terms()->set_update_site(proto::OWNER);
  hello.mutable_terms()->set_credit(16);
  worker.SayHello(hello);
  ASSERT_TRUE(worker.Await(Kind::HELLO).has_value());
  for (const ChunkId id : PushOrder(plan, *ShardMap::Create(plan, {1}), 0, 0)) {
    worker.Push(id, Step(1), 4 * plan.buckets()[0].layout.range(id.slot).size());
    ASSERT_TRUE(worker.Await(Kind::PULL).has_value());
  }
  // Of the state the server makes a copy for those who ask for it: 64 MiB, for which there is no room.
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  long pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  struct rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(pages) * sysconf(_SC_PAGESIZE) + (8 << 20);
  malloc_trim(0);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &tight), 0);
  proto::FrameHeader request;
  request.set_kind(Kind::STATE_REQUEST);
  worker.Send(request, "");
  const absl::Status failure = worker.AwaitFailure();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_TRUE(absl::IsResourceExhausted(failure)) << failure;
  EXPECT_TRUE(absl::StartsWith(failure.message(), "no memory for ")) << failure;
}

TEST_F(ServerTest, StopReachesWorkersAndWait) {
  Begin();
  server_->Stop(absl::CancelledError("enough"));
  ExpectRunFails(absl::StatusCode::kCancelled, {"enough"});
}

// Nobody noticed: a stream that is half closed is not lost.
TEST_F(ServerTest, AWorkerThatFinishesWithoutGoodbyeIsNamedToTheOthers) {
  Begin();
  std::thread main(
      [this] { server_->Wait().IgnoreError(); });  // as in main(): looks from time to time
  workers_[1]->Finish();
  ExpectStatus(workers_[0]->AwaitFailure(), absl::StatusCode::kUnavailable,
               {"rank 1 (10.0.0.1) lost", "without goodbye"});
  workers_.clear();
  main.join();
}

class HastyServerTest : public ServerTest {
 protected:
  HastyServerTest() : ServerTest(absl::Milliseconds(600)) {}
};

TEST_F(HastyServerTest, StreamsThatSayNothingAreEndedAndTheRunGoesOn) {
  Begin();
  std::thread main([this] { EXPECT_EQ(server_->Wait(), absl::OkStatus()); });
  RawStream mute(*link_, server_->address());
  RawStream turned_away(*link_, server_->address());
  turned_away.SayHello(RawStream::HelloFor(plan_, 5));
  EXPECT_FALSE(turned_away.AwaitFailure().ok());
  EXPECT_TRUE(mute.AwaitEnd());
  EXPECT_TRUE(turned_away.AwaitEnd());
  RawStream talkative(*link_, server_->address());
  for (int i = 0; i < 100; ++i) talkative.Push({0, 0}, Step(1), 64);
  EXPECT_TRUE(talkative.AwaitEnd());
  RawStream half(*link_, server_->address());
  half.Finish();
  EXPECT_TRUE(absl::IsInvalidArgument(half.AwaitFailure()));
  proto::FrameHeader header;
  header.set_kind(Kind::GOODBYE);
  for (int rank : {0, 1}) workers_[rank]->Send(header, "");
  main.join();
}

class ImpatientServerTest : public ServerTest {
 protected:
  ImpatientServerTest() : ServerTest(absl::Milliseconds(50)) {}
};

TEST_F(ImpatientServerTest, AServerThatNobodyComesToEnds) {
  ExpectRunFails(absl::StatusCode::kDeadlineExceeded, {"no worker said hello"});
}

TEST_F(ImpatientServerTest, AnIncompleteGroupEndsNamingTheMissingRank) {
  workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
  workers_[0]->SayHello(RawStream::HelloFor(plan_, 0));
  std::thread main([this] { server_->Wait().IgnoreError(); });  // as in main(): keeps the time
  ExpectRunFails(absl::StatusCode::kDeadlineExceeded, {"rank 1 did not say hello"});
  main.join();
}

// A job that was suspended while it was set up ended when it was resumed.
TEST_F(ServerTest, WhileTheJobIsSuspendedNobodyIsLate) {
  Notification waits;  // for workers: it is then that it looks for the store
  ServerOptions options;
  options.link = link_;
  options.timeout = absl::Seconds(3);
  options.connect_store =
      [&waits](const std::string&, Deadline,
               const std::string&) -> absl::StatusOr<std::shared_ptr<ConnectedStore>> {
    waits.Notify();
    return absl::UnavailableError("nobody is there");
  };
  server_ = *ParameterServer::Start(options);
  workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
  proto::Hello hello = RawStream::HelloFor(plan_, 0);
  hello.set_store("127.0.0.1:1");
  std::thread main([this] { server_->Wait().IgnoreError(); });
  workers_[0]->SayHello(hello);
  waits.WaitForNotification();
  SuspendProcess(absl::Seconds(4));
  const MonotonicTime resumed = MonotonicTime::Now();
  ExpectStatus(workers_[0]->AwaitFailure(), absl::StatusCode::kDeadlineExceeded,
               {"rank 1 did not say hello"});
  // A pause is measured up to a second too short.
  EXPECT_GT(MonotonicTime::Now() - resumed, absl::Seconds(1));
  workers_.clear();
  main.join();
}

// All of a large job's were listed.
TEST_F(ImpatientServerTest, OfManyMissingRanksSomeAreNamed) {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  const Plan plan = *Plan::FromBuckets({{"a", {200}, {1}, 0}}, {{0}}, optimizer, 40, 64);
  workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
  workers_[0]->SayHello(RawStream::HelloFor(plan, 3));
  std::thread main([this] { server_->Wait().IgnoreError(); });
  ExpectRunFails(absl::StatusCode::kDeadlineExceeded,
                 {"ranks 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 23 more did not "
                  "say hello"});
  main.join();
}

// It was called by its place among those of the server, which is another rank's number in the job.
TEST_F(ImpatientServerTest, AMissingRankIsCalledAsInTheJobOfWhichTheServersWorkersAreAPart) {
  proto::Hello hello = RawStream::HelloFor(plan_, 0);
  hello.set_number(4 + 1);
  hello.add_numbers(4);
  hello.add_numbers(6);
  workers_.push_back(std::make_unique<RawStream>(*link_, server_->address()));
  workers_[0]->SayHello(hello);
  std::thread main([this] { server_->Wait().IgnoreError(); });
  ExpectRunFails(absl::StatusCode::kDeadlineExceeded, {"rank 6 did not say hello"});
  main.join();
}

}  // namespace
}  // namespace gradsync
