// Who gets into the store of a job, by the calls that come over the network.

#include "core/group/store_door.h"

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/mutex.h"
#include "core/group/grpc_store.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/challenge.grpc.pb.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

class StoreDoorTest : public testing::Test {
 protected:
  void Open(const std::string& secret = "", const std::string& at = "127.0.0.1:0") {
    StoreDoorOptions door;
    door.key = "secret";
    door.run_id = "job";
    door.workers = 3;
    door.servers = 1;
    Credentials credentials = InsecureCredentials();
    credentials.secret = secret;
    server_ = *GrpcStoreServer::Start(at, credentials, door);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", server_->port()); }

  absl::StatusOr<std::shared_ptr<KeyValueStore>> Enter(StorePass pass) {
    return EnterStore(address(), InsecureCredentials(), &pass, Soon());
  }

  absl::StatusOr<std::shared_ptr<KeyValueStore>> EnterAs(int rank, std::string run_id = "job") {
    StorePass pass;
    pass.run_id = std::move(run_id);
    pass.rank = rank;
    return Enter(pass);
  }

  std::shared_ptr<KeyValueStore> With(const std::string& key) {
    return *ConnectStore(address(), InsecureCredentials(), Soon(), key);
  }

  std::unique_ptr<GrpcStoreServer> server_;
};

// The same command started twice: the second rank 1 published its failure for the whole job.
TEST_F(StoreDoorTest, APlaceIsGivenOnceAndWhoeverComesLaterIsRefusedAlone) {
  Open();
  const auto first = EnterAs(1);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = EnterAs(1).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_TRUE(absl::StrContains(second.message(), "rank 1 of run \"job\"")) << second;
  EXPECT_TRUE(EnterAs(2).ok());
  EXPECT_EQ((*first)->Set("job/0/x", "1", Soon()), absl::OkStatus());
  EXPECT_EQ((*first)->Get("job/0/x", Soon()).value(), "1");
}

TEST_F(StoreDoorTest, OtherRunsAttemptsRanksAndServersTooManyAreRefused) {
  Open();
  EXPECT_TRUE(absl::IsFailedPrecondition(EnterAs(1, "other").status()));
  EXPECT_LT(EnterAs(1, std::string(1 << 20, 'x')).status().message().size(), 400u);
  for (const int rank : {-1, 0, 3, std::numeric_limits<int>::max()}) {
    EXPECT_TRUE(absl::IsInvalidArgument(EnterAs(rank).status())) << rank;
  }
  StorePass pass;
  pass.run_id = "job";
  pass.rank = 1;
  pass.attempt = 1;
  EXPECT_TRUE(absl::IsFailedPrecondition(Enter(pass).status()));
  StorePass server;
  server.server = true;
  server.attempt = -1;
  EXPECT_TRUE(Enter(server).ok());
  const absl::Status many = Enter(server).status();
  EXPECT_TRUE(absl::IsResourceExhausted(many)) << many;
  EXPECT_TRUE(EnterAs(1).ok());
}

TEST_F(StoreDoorTest, NoCallIsAnsweredWithoutTheKey) {
  Open();
  for (const std::string key : {"", "another"}) {
    const auto stranger = With(key);
    EXPECT_TRUE(absl::IsPermissionDenied(stranger->Set("job/0/failure", "x", Soon())));
    EXPECT_TRUE(absl::IsPermissionDenied(stranger->SetIfAbsent("x", "x", Soon()).status()));
    EXPECT_TRUE(absl::IsPermissionDenied(stranger->Get("run", Soon()).status()));
    EXPECT_TRUE(absl::IsPermissionDenied(stranger->Fail("", "x", Soon()).status()));
    EXPECT_TRUE(absl::IsPermissionDenied(stranger->Fail("job/0/", "x", Soon()).status()));
    EXPECT_TRUE(
        absl::IsPermissionDenied(stranger->AllGather("job/0/a", 0, 1, "x", Soon()).status()));
  }
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(With("secret")->Get("job/0/failure", Deadline::Now()).status()));
}

TEST_F(StoreDoorTest, WhoDoesNotHaveTheSecretIsToldNothing) {
  Open("the launcher's");
  StorePass pass;
  pass.run_id = "job";
  pass.rank = 1;
  EXPECT_TRUE(absl::IsUnauthenticated(Enter(pass).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(With("secret")->Get("run", Soon()).status()));
  Credentials credentials = InsecureCredentials();
  credentials.secret = "another";
  const absl::Status refused = EnterStore(address(), credentials, &pass, Soon()).status();
  EXPECT_TRUE(absl::IsUnauthenticated(refused)) << refused;
  EXPECT_FALSE(absl::StrContains(refused.message(), "launcher's")) << refused;
  credentials.secret = "the launcher's";
  const auto member = EnterStore(address(), credentials, &pass, Soon());
  ASSERT_TRUE(member.ok()) << member.status();
  EXPECT_EQ(pass.key, "secret");
  const auto heard = (*member)->Watch("job/0/x", [](absl::StatusOr<std::string>) {});
  for (int i = 0; i < 100; ++i) EXPECT_EQ((*member)->Set("job/0/y", "1", Soon()), absl::OkStatus());
  EXPECT_EQ((*member)->Get("job/0/y", Soon()).value(), "1");
}

// Watches showed one proof only, unlike calls, and failed the job where it was refused: after a
// long pause of the process for instance.
TEST_F(StoreDoorTest, AWatchWhoseProofIsRefusedShowsOneOfANewChallenge) {
  Open("the launcher's");
  Credentials credentials = InsecureCredentials();
  credentials.secret = "the launcher's";
  const auto member = *ConnectStore(address(), credentials, Soon(), "secret");
  EXPECT_EQ(member->Set("job/0/x", "1", Soon()), absl::OkStatus());
  // To another store the member's challenge is as bad as one that is too old.
  const std::string same = address();
  server_.reset();
  Open("the launcher's", same);
  EXPECT_EQ(server_->local()->Set("job/0/x", "2", Soon()), absl::OkStatus());
  absl::StatusOr<std::string> value;
  const Deadline deadline = Soon();
  // The first ones may find the old connection.
  do {
    Notification answered;
    const auto watch = member->Watch("job/0/x", [&](absl::StatusOr<std::string> answer) {
      value = std::move(answer);
      answered.Notify();
    });
    answered.WaitForNotification();
  } while (absl::IsUnavailable(value.status()) && !deadline.passed());
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, "2");
}

TEST_F(StoreDoorTest, WhoHasASecretLeavesAStoreAloneThatAsksForNone) {
  Open();
  Credentials credentials = InsecureCredentials();
  credentials.secret = "the launcher's";
  StorePass pass;
  pass.run_id = "job";
  pass.rank = 1;
  const absl::Status refused = EnterStore(address(), credentials, &pass, Soon()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
}

TEST_F(StoreDoorTest, AFailureIsPublishedForTheRunOnly) {
  Open();
  const auto member = With("secret");
  for (const char* prefix : {"", "j", "job", "job/0", "run", "job/1/"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(member->Fail(prefix, "x", Soon()).status())) << prefix;
  }
  EXPECT_TRUE(member->Fail("job/0/", "x", Soon()).ok());
  server_ = *GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials());
  EXPECT_TRUE(absl::IsPermissionDenied(With("")->Fail("", "x", Soon()).status()));
}

// 17 seconds under the store's mutex, and then no memory.
TEST_F(StoreDoorTest, AWorldThatNoJobHasIsRefusedAtOnce) {
  Open();
  const auto member = With("secret");
  const int most = std::numeric_limits<int>::max();
  const absl::Time begin = absl::Now();
  const absl::Status refused = member->AllGather("job/0/a", 0, most, "x", Deadline::Now()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  const absl::Status late = member->AllGather("job/0/a", 0, 65536, "x", Deadline::Now()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_LT(late.message().size(), 300u);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
  EXPECT_TRUE(absl::IsInvalidArgument(member->Set(std::string(4097, 'k'), "x", Soon())));
}

// It waited for as long as --timeout said, and named nobody.
TEST(DeafStoreTest, ARankZeroThatListensAndAnswersNothingIsLost) {
  DeafProcess rank_0;
  rank_0.Listen();
  StorePass pass;
  pass.run_id = "job";
  pass.rank = 1;
  const absl::Status lost = EnterStore(rank_0.address(), InsecureCredentials(), &pass,
                                       Deadline::In(absl::Minutes(1)), absl::Seconds(1))
                                .status();
  EXPECT_EQ(lost, LostStoreHolder(rank_0.address(), absl::Seconds(1)));
}

TEST(DeafStoreTest, ARankZeroThatDoesNotListenYetIsWaitedFor) {
  DeafProcess rank_0;
  StorePass pass;
  pass.run_id = "job";
  pass.rank = 1;
  const absl::Status missing = EnterStore(rank_0.address(), InsecureCredentials(), &pass,
                                          Deadline::In(absl::Seconds(3)), absl::Seconds(1))
                                   .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(missing)) << missing;
}

TEST(DeafStoreTest, AnotherServiceAtTheAddressIsNoStore) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  proto::Door::Service other;  // which has no method of a store
  builder.RegisterService(&other);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  StorePass pass;
  const std::string address = absl::StrCat("127.0.0.1:", port);
  const absl::Status refused =
      EnterStore(address, InsecureCredentials(), &pass, Soon(), absl::Seconds(10)).status();
  EXPECT_EQ(refused, absl::FailedPreconditionError(absl::StrCat(
                         "store at ", address, ": expected a store there, found another service")));
}

// Refuses every call, as a proxy does that does not reach the store.
class ClosedService : public grpc::CallbackGenericService {
 public:
  int calls() const { return calls_; }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    class Refusal : public grpc::ServerGenericBidiReactor {
     public:
      Refusal() { Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet")); }
      void OnDone() override { delete this; }
    };
    ++calls_;
    return new Refusal;
  }

 private:
  std::atomic<int> calls_{0};
};

// It asked thousands of times per second.
TEST(ClosedStoreTest, WhoIsRefusedAtOnceAsksAgainAfterAPause) {
  ClosedService closed;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterCallbackGenericService(&closed);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const absl::Status refused = ConnectStore(absl::StrCat("127.0.0.1:", port), InsecureCredentials(),
                                            Deadline::In(absl::Seconds(1)))
                                   .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "not yet")) << refused;
  EXPECT_GE(closed.calls(), 2);
  EXPECT_LE(closed.calls(), 12);
}

TEST(LostStoreHolderTest, TheHolderOfALostStoreIsNamed) {
  EXPECT_EQ(LostStoreHolder("h:1", absl::Seconds(10)),
            absl::UnavailableError("rank 0 lost: no sign of life for 10s of the store that it "
                                   "holds at h:1"));
}

}  // namespace
}  // namespace gradsync
