// What only a store on a network can do: start, fail to start, be lost.
#include "core/group/grpc_store.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

std::unique_ptr<GrpcStoreServer> StartServer(const std::string& address = "127.0.0.1:0") {
  return GrpcStoreServer::Start(address, InsecureCredentials()).value();
}

std::string AddressOf(const GrpcStoreServer& server) {
  return absl::StrCat("127.0.0.1:", server.port());
}

std::shared_ptr<KeyValueStore> Connect(const std::string& address) {
  return ConnectStore(address, InsecureCredentials(), Soon()).value();
}

TEST(GrpcStoreTest, ATakenPortIsAnErrorThatNamesTheAddress) {
  const auto server = StartServer();
  for (const std::string host : {"127.0.0.1", "0.0.0.0", "[::]"}) {
    const std::string address = absl::StrCat(host, ":", server->port());
    const absl::Status status = GrpcStoreServer::Start(address, InsecureCredentials()).status();
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  }
}

// Ranks that have met must not blame the one whose connection the store's process cannot take.
TEST(GrpcStoreTest, AStoreWithoutDescriptorsIsToBlameForWhoDoesNotCome) {
  const auto server = StartServer();
  const auto store = Connect(AddressOf(*server));
  absl::Status remote, local;
  const auto ask = [&] {
    const Deadline at_once = Deadline::In(absl::Milliseconds(50));
    remote = store->AllGather("run", 1, 3, "", at_once).status();
    local = server->local()->AllGather("run", 0, 3, "", at_once).status();
  };
  // First with descriptors: the undefined behaviour sanitizer opens a pipe at what it sees first.
  ask();
  for (const absl::Status& status : {remote, local}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith("ranks "));
  }
  {
    const NoDescriptorsLeft none;
    ask();
  }
  for (const absl::Status& status : {remote, local}) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith("rank 0 has no file descriptors left"), HasSubstr("of 3 have")));
  }
}

TEST(GrpcStoreTest, AForeignAddressIsAnError) {
  // TEST-NET-1, which no host has.
  const absl::Status status = GrpcStoreServer::Start("192.0.2.1:0", InsecureCredentials()).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("192.0.2.1:0"));
}

TEST(GrpcStoreTest, AnAddressThatIsNoneIsInvalid) {
  EXPECT_TRUE(
      absl::IsInvalidArgument(GrpcStoreServer::Start("nonsense", InsecureCredentials()).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(ConnectStore("127.0.0.1", InsecureCredentials(), Soon()).status()));
}

// Such connections held descriptors for as long as their peer liked.
TEST(GrpcStoreTest, AConnectionWithoutACallIsClosedAndItsClientMayCallAgain) {
  StoreServerTimes times;
  times.idle = absl::Milliseconds(200);
  const auto server =
      GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials(), {}, nullptr, times).value();
  const auto waits = ConnectStore(AddressOf(*server), InsecureCredentials(), Soon()).value();
  const auto presence = waits->Attend("gone");
  const auto calls = Connect(AddressOf(*server));
  for (int i = 0; i < 3; ++i) {
    MuteConnection mute(server->port());
    EXPECT_TRUE(mute.AwaitEnd(Soon()));
  }
  // The store would have been told by the end of the connection.
  EXPECT_FALSE(calls->Get("gone", Deadline::Now()).ok());
  EXPECT_EQ(calls->Set("key", "value", Soon()), absl::OkStatus());
  EXPECT_EQ(calls->Get("key", Soon()).value(), "value");
}

TEST(GrpcStoreTest, APortIsFreeAgainAfterTheServer) {
  auto server = StartServer();
  const std::string address = AddressOf(*server);
  server.reset();
  server = StartServer(address);
  EXPECT_TRUE(Connect(address)->Set("key", "value", Soon()).ok());
}

TEST(GrpcStoreTest, ConnectingWaitsUntilTheServerIsUp) {
  auto server = StartServer();
  const std::string address = AddressOf(*server);
  server.reset();
  absl::StatusOr<std::shared_ptr<KeyValueStore>> store;
  std::thread client([&] { store = ConnectStore(address, InsecureCredentials(), Soon()); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      ConnectStore(address, InsecureCredentials(), Deadline::In(absl::Milliseconds(300)))
          .status()));
  server = StartServer(address);
  client.join();
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->Set("key", "value", Soon()).ok());
}

TEST(GrpcStoreTest, WhereNoServerIsConnectingNamesTheAddressAndTheCause) {
  auto server = StartServer();
  const std::string address = AddressOf(*server);
  server.reset();
  const absl::Status status =
      ConnectStore(address, InsecureCredentials(), Deadline::In(absl::Milliseconds(300))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(address));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Connection refused"));
}

// Counts what ended, so that a test can wait for all.
class Results {
 public:
  void Add(absl::Status status) {
    MutexLock lock(&mutex_);
    statuses_.push_back(std::move(status));
    changed_.SignalAll();
  }
  std::vector<absl::Status> Await(size_t count) {
    MutexLock lock(&mutex_);
    const Deadline deadline = Soon();
    while (statuses_.size() < count) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) break;
    }
    return statuses_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
};

TEST(GrpcStoreTest, TheEndOfTheServerFailsAllThatWaits) {
  auto server = StartServer();
  const std::string address = AddressOf(*server);
  const auto store = Connect(address);
  Results results;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { results.Add(store->Get("never", Soon()).status()); });
    threads.emplace_back(
        [&, i] { results.Add(store->AllGather("never", i, 5, "", Soon()).status()); });
  }
  std::vector<std::unique_ptr<KeyValueStore::Watcher>> watchers;
  for (int i = 0; i < 4; ++i) {
    watchers.push_back(Connect(address)->Watch(
        "never", [&](absl::StatusOr<std::string> value) { results.Add(value.status()); }));
  }
  // Calls of one connection arrive in no order, but all are likely there after these.
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(store->Set("key", "value", Soon()).ok());
  const MonotonicTime start = MonotonicTime::Now();
  server.reset();
  const std::vector<absl::Status> statuses = results.Await(12);
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(10));
  ASSERT_EQ(statuses.size(), 12u);
  for (const absl::Status& status : statuses) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"never\""));
  }
  for (std::thread& thread : threads) thread.join();
  const absl::Status late = store->Set("key", "value", Soon());
  EXPECT_TRUE(absl::IsUnavailable(late)) << late;
  EXPECT_THAT(std::string(late.message()), HasSubstr(address));
}

TEST(GrpcStoreTest, AServerWithoutCallsStopsAtOnce) {
  auto server = StartServer();
  const auto store = Connect(AddressOf(*server));
  ASSERT_TRUE(store->Set("key", "value", Soon()).ok());
  const MonotonicTime start = MonotonicTime::Now();
  server.reset();
  EXPECT_LT(MonotonicTime::Now() - start, absl::Seconds(1));
}

// Whoever is busy between two calls would blame the store's process, which ends since the job has.
TEST(GrpcStoreTest, AFailedJobsServerOutlastsItsEndForThoseWhoAttend) {
  StoreServerTimes times;
  times.hearing = absl::Minutes(1);
  auto server =
      GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials(), {}, nullptr, times).value();
  const auto member = ConnectStore(AddressOf(*server), InsecureCredentials(), Soon()).value();
  auto presence = member->Attend("job/gone");
  while (server->attending() == 0) std::this_thread::yield();
  ASSERT_TRUE(server->local()->Fail("job/", "rank 2 lost", Soon()).ok());
  std::thread end([&] { server.reset(); });
  // A wait that the server's end would end.
  const absl::Status waited =
      member->Get("another job/key", Deadline::In(absl::Milliseconds(500))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(waited)) << waited;
  const absl::Status asked = member->Get("job/next", Soon()).status();
  EXPECT_TRUE(absl::IsAborted(asked)) << asked;
  EXPECT_EQ(asked.message(), "rank 2 lost");
  presence.reset();
  end.join();
  EXPECT_TRUE(absl::IsUnavailable(member->Get("job/next", Soon()).status()));
}

TEST(GrpcStoreTest, TwoServersInOneProcessAreTwoStores) {
  const auto one = StartServer();
  const auto two = StartServer();
  ASSERT_TRUE(Connect(AddressOf(*one))->Set("key", "1", Soon()).ok());
  ASSERT_TRUE(Connect(AddressOf(*two))->Set("key", "2", Soon()).ok());
  EXPECT_EQ(Connect(AddressOf(*one))->Get("key", Soon()).value(), "1");
  EXPECT_EQ(Connect(AddressOf(*two))->Get("key", Soon()).value(), "2");
}

TEST(GrpcStoreTest, ManyClientsExchangeManyTimes) {
  constexpr int kRanks = 4;
  const auto server = StartServer();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto store = Connect(AddressOf(*server));
      for (int i = 0; i < 200; ++i) {
        const auto parts = store->AllGather(absl::StrCat("round ", i), rank, kRanks,
                                            absl::StrCat(rank, ":", i), Soon());
        ASSERT_TRUE(parts.ok()) << parts.status();
        EXPECT_THAT(*parts, ElementsAre(absl::StrCat("0:", i), absl::StrCat("1:", i),
                                        absl::StrCat("2:", i), absl::StrCat("3:", i)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gradsync
