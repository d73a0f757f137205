// What every store keeps, whatever carries it.
#include "core/group/key_value_store.h"

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fault_injection.h"
#include "core/base/mutex.h"
#include "core/group/grpc_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }
Deadline Shortly() { return Deadline::In(absl::Milliseconds(50)); }

// A store and what a rank holds of it.
class Service {
 public:
  virtual ~Service() = default;
  virtual std::shared_ptr<KeyValueStore> Join() = 0;
};

class InMemoryService : public Service {
 public:
  std::shared_ptr<KeyValueStore> Join() override { return store_; }

 private:
  const std::shared_ptr<KeyValueStore> store_ = NewInMemoryStore();
};

// Every rank has its own connection, as it has in its own process.
class GrpcService : public Service {
 public:
  GrpcService() : server_(GrpcStoreServer::Start("127.0.0.1:0", InsecureCredentials()).value()) {}
  std::shared_ptr<KeyValueStore> Join() override {
    return ConnectStore(absl::StrCat("127.0.0.1:", server_->port()), InsecureCredentials(), Soon())
        .value();
  }

 private:
  const std::unique_ptr<GrpcStoreServer> server_;
};

// A result that a watch or another thread brings.
class Mailbox {
 public:
  std::function<void(absl::StatusOr<std::string>)> callback() {
    return [this](absl::StatusOr<std::string> result) {
      MutexLock lock(&mutex_);
      results_.push_back(std::move(result));
      changed_.SignalAll();
    };
  }
  absl::StatusOr<std::string> Await() {
    MutexLock lock(&mutex_);
    const Deadline deadline = Soon();
    while (results_.empty()) {
      if (changed_.WaitWithDeadline(&mutex_, deadline)) return absl::InternalError("nothing came");
    }
    return results_.front();
  }
  size_t count() {
    MutexLock lock(&mutex_);
    return results_.size();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<absl::StatusOr<std::string>> results_ ABSL_GUARDED_BY(mutex_);
};

struct StoreKind {
  std::string name;
  std::function<std::unique_ptr<Service>()> make;
};

class KeyValueStoreTest : public ::testing::TestWithParam<StoreKind> {
 protected:
  const std::unique_ptr<Service> service_ = GetParam().make();
  const std::shared_ptr<KeyValueStore> store_ = service_->Join();
};

TEST_P(KeyValueStoreTest, AValueThatIsSetIsGotByOthers) {
  ASSERT_TRUE(store_->Set("key", "value", Soon()).ok());
  EXPECT_EQ(service_->Join()->Get("key", Soon()).value(), "value");
}

TEST_P(KeyValueStoreTest, ALaterSetReplacesTheValue) {
  ASSERT_TRUE(store_->Set("key", "one", Soon()).ok());
  ASSERT_TRUE(store_->Set("key", "two", Soon()).ok());
  EXPECT_EQ(store_->Get("key", Soon()).value(), "two");
}

TEST_P(KeyValueStoreTest, KeysAndValuesAreAnyBytes) {
  const std::string key("k\0\xff/\x80", 5);
  const std::string value("\0v\xfe\n", 4);
  ASSERT_TRUE(store_->Set(key, value, Soon()).ok());
  ASSERT_TRUE(store_->Set("", "", Soon()).ok());
  EXPECT_EQ(store_->Get(key, Soon()).value(), value);
  EXPECT_EQ(store_->Get("", Soon()).value(), "");
}

TEST_P(KeyValueStoreTest, TheFirstSetIfAbsentWins) {
  EXPECT_EQ(store_->SetIfAbsent("key", "first", Soon()).value(), "first");
  EXPECT_EQ(service_->Join()->SetIfAbsent("key", "second", Soon()).value(), "first");
  EXPECT_EQ(store_->Get("key", Soon()).value(), "first");
}

TEST_P(KeyValueStoreTest, OfManySetIfAbsentAllSeeTheSameWinner) {
  std::vector<std::string> seen(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      seen[i] = service_->Join()->SetIfAbsent("key", absl::StrCat("from ", i), Soon()).value();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : seen) EXPECT_EQ(each, seen[0]);
}

TEST_P(KeyValueStoreTest, AGetWaitsForALaterSet) {
  absl::StatusOr<std::string> got;
  std::thread waiter([&] { got = service_->Join()->Get("key", Soon()); });
  std::thread other([&] { store_->Get("key", Soon()).IgnoreError(); });
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->Get("key", Shortly()).status()));
  ASSERT_TRUE(store_->SetIfAbsent("key", "late", Soon()).ok());
  waiter.join();
  other.join();
  EXPECT_EQ(got.value(), "late");
}

TEST_P(KeyValueStoreTest, AHundredWaitingGetsHoldUpNobody) {
  std::vector<std::thread> waiters;
  std::atomic<int> right{0};
  for (int i = 0; i < 100; ++i) {
    waiters.emplace_back([&, i] {
      const absl::StatusOr<std::string> value = store_->Get(absl::StrCat("late ", i), Soon());
      if (value.ok() && *value == absl::StrCat(i)) ++right;
    });
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(store_->Set(absl::StrCat("other ", i), "x", Soon()).ok());
    ASSERT_TRUE(store_->Get(absl::StrCat("other ", i), Soon()).ok());
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(store_->Set(absl::StrCat("late ", i), absl::StrCat(i), Soon()).ok());
  }
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(right, 100);
}

// Rank 0's waits, which need no connection, ended at once, and it blamed others for what nobody did.
TEST_P(KeyValueStoreTest, AWaitHasItsTimeAlsoWhereTheProcessWasStopped) {
  const std::shared_ptr<KeyValueStore> other = service_->Join();
  absl::StatusOr<std::string> got;
  std::thread waits([&] { got = store_->Get("key", Deadline::In(absl::Seconds(3))); });
  // Waits that begin after it and end before it: before the pause, because nobody is given back the
  // time of a pause before a wait; after it, when some seconds are left, of which a pause is measured
  // up to one too short.
  const auto wait = [&other] {
    EXPECT_FALSE(other->Get("another", Deadline::In(absl::Milliseconds(300))).ok());
  };
  wait();
  SuspendProcess(absl::Seconds(4));
  wait();
  EXPECT_EQ(other->Set("key", "value", Soon()), absl::OkStatus());
  waits.join();
  EXPECT_EQ(got.value_or(std::string(got.status().message())), "value");
}

TEST_P(KeyValueStoreTest, AMissedGetNamesTheKey) {
  const absl::Status status = store_->Get("run/0/plan", Shortly()).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"run/0/plan\""));
}

TEST_P(KeyValueStoreTest, ADeadlineInThePastAsksWithoutWaiting) {
  ASSERT_TRUE(store_->Set("here", "value", Soon()).ok());
  EXPECT_EQ(store_->Get("here", Deadline::Now()).value(), "value");
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->Get("absent", Deadline::Now()).status()));
}

TEST_P(KeyValueStoreTest, WithoutADeadlineAGetStillAnswers) {
  ASSERT_TRUE(store_->Set("here", "value", Deadline::Never()).ok());
  EXPECT_EQ(store_->Get("here", Deadline::Never()).value(), "value");
}

TEST_P(KeyValueStoreTest, LargeValuesPass) {
  std::string value(64 << 20, 'x');
  value[12345] = 'y';
  value.back() = 'z';
  ASSERT_TRUE(store_->Set("large", value, Soon()).ok());
  const absl::StatusOr<std::string> got = service_->Join()->Get("large", Soon());
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(*got == value);
}

TEST_P(KeyValueStoreTest, KeysOfTwoRunsNeverMeet) {
  ASSERT_TRUE(store_->Set("one/0/key", "1", Soon()).ok());
  ASSERT_TRUE(store_->Set("two/0/key", "2", Soon()).ok());
  EXPECT_EQ(store_->Get("one/0/key", Soon()).value(), "1");
  EXPECT_TRUE(absl::IsDeadlineExceeded(store_->Get("one/1/key", Shortly()).status()));
  // Nor do the keys of values and of exchanges.
  EXPECT_THAT(store_->AllGather("one/0/key", 0, 1, "part", Soon()).value(), ElementsAre("part"));
  EXPECT_EQ(store_->Get("one/0/key", Soon()).value(), "1");
}

TEST_P(KeyValueStoreTest, AnExchangeGivesAllPartsInRankOrder) {
  for (int n = 1; n <= 8; ++n) {
    std::vector<std::string> expected;
    for (int rank = 0; rank < n; ++rank) expected.push_back(absl::StrCat("part ", rank, " of ", n));
    std::vector<absl::StatusOr<std::vector<std::string>>> results(n);
    std::vector<std::thread> threads;
    for (int rank = n - 1; rank >= 0; --rank) {
      threads.emplace_back([&, rank] {
        results[rank] = service_->Join()->AllGather("key", rank, n, expected[rank], Soon());
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < n; ++rank) {
      ASSERT_TRUE(results[rank].ok()) << results[rank].status();
      EXPECT_EQ(*results[rank], expected) << "rank " << rank << " of " << n;
    }
  }
}

TEST_P(KeyValueStoreTest, AMissedExchangeNamesTheMissingRanksAndTheKey) {
  absl::Status first;
  std::thread rank_0([&] {
    first = store_->AllGather("run/0/hello", 0, 4, "a", Deadline::In(absl::Seconds(2))).status();
  });
  const absl::Status second =
      store_->AllGather("run/0/hello", 1, 4, "b", Deadline::In(absl::Seconds(1))).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(second)) << second;
  EXPECT_THAT(std::string(second.message()),
              HasSubstr("2, 3 of 4 have not come to \"run/0/hello\""));
  rank_0.join();
  EXPECT_TRUE(absl::IsDeadlineExceeded(first)) << first;
  // Rank 1 had come, and was not what rank 0 waited for; it was named too.
  EXPECT_THAT(std::string(first.message()),
              HasSubstr("ranks 2, 3 of 4 have not come to \"run/0/hello\""));
}

TEST_P(KeyValueStoreTest, ARankThatGaveUpTakesItsPartBack) {
  ASSERT_TRUE(absl::IsDeadlineExceeded(store_->AllGather("key", 0, 2, "old", Shortly()).status()));
  const absl::Status alone = store_->AllGather("key", 1, 2, "b", Shortly()).status();
  EXPECT_THAT(std::string(alone.message()), HasSubstr("rank 0 of 2 has not come"));
  std::thread rank_1([&] {
    EXPECT_THAT(store_->AllGather("key", 1, 2, "b", Soon()).value(), ElementsAre("new", "b"));
  });
  EXPECT_THAT(store_->AllGather("key", 0, 2, "new", Soon()).value(), ElementsAre("new", "b"));
  rank_1.join();
}

TEST_P(KeyValueStoreTest, ARankThatComesTwiceOrFromAnotherWorldIsRejected) {
  // Either of the two may come first; the one that stays is rank 1.
  std::thread rank_1([&] {
    absl::StatusOr<std::vector<std::string>> parts;
    do {
      parts = store_->AllGather("key", 1, 2, "b", Soon());
    } while (absl::IsInvalidArgument(parts.status()));
    EXPECT_THAT(parts.value(), ElementsAre("a", "b"));
  });
  absl::Status twice;
  do {
    twice = service_->Join()->AllGather("key", 1, 2, "c", Deadline::Now()).status();
  } while (absl::IsDeadlineExceeded(twice));
  EXPECT_TRUE(absl::IsInvalidArgument(twice)) << twice;
  EXPECT_THAT(std::string(twice.message()), HasSubstr("rank 1 of 2 came twice"));
  const absl::Status other_world = store_->AllGather("key", 0, 3, "a", Soon()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(other_world)) << other_world;
  EXPECT_THAT(std::string(other_world.message()), HasSubstr("a world of 2, rank 0 one of 3"));
  EXPECT_THAT(store_->AllGather("key", 0, 2, "a", Soon()).value(), ElementsAre("a", "b"));
  rank_1.join();
}

TEST_P(KeyValueStoreTest, ARankOutsideTheWorldIsRejected) {
  for (const auto& [rank, world] : {std::pair{2, 2}, std::pair{-1, 2}, std::pair{0, 0}}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(store_->AllGather("key", rank, world, "", Soon()).status()));
  }
}

TEST_P(KeyValueStoreTest, AFailureEndsAllWaitsForItsKeysNowAndLater) {
  Mailbox watched;
  const auto watcher = service_->Join()->Watch("run/1/failure", watched.callback());
  std::vector<absl::Status> ended(3);
  std::vector<std::thread> threads;
  threads.emplace_back([&] { ended[0] = service_->Join()->Get("run/1/key", Soon()).status(); });
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      ended[1 + rank] = service_->Join()->AllGather("run/1/part", rank, 3, "part", Soon()).status();
    });
  }
  ASSERT_TRUE(store_->Set("run/1/set", "value", Soon()).ok());
  EXPECT_EQ(store_->Fail("run/1/", "rank 2 is lost", Soon()).value(), "rank 2 is lost");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(watched.Await().status(), absl::AbortedError("rank 2 is lost"));
  for (const absl::Status& status : ended) EXPECT_EQ(status, absl::AbortedError("rank 2 is lost"));

  EXPECT_EQ(store_->Get("run/1/key", Soon()).status(), absl::AbortedError("rank 2 is lost"));
  EXPECT_EQ(store_->AllGather("run/1/part", 2, 3, "part", Soon()).status(),
            absl::AbortedError("rank 2 is lost"));
  EXPECT_EQ(store_->Get("run/1/set", Soon()).value(), "value");
}

TEST_P(KeyValueStoreTest, TheFirstFailureWinsAndEndsNoWaitsForOtherKeys) {
  Mailbox other;
  const auto watcher = store_->Watch("run/10/key", other.callback());
  EXPECT_EQ(store_->Fail("run/1/", "first", Soon()).value(), "first");
  EXPECT_EQ(service_->Join()->Fail("run/1/", "second", Soon()).value(), "first");
  EXPECT_EQ(store_->Get("run/1/key", Soon()).status(), absl::AbortedError("first"));
  ASSERT_TRUE(store_->Set("run/10/key", "value", Soon()).ok());
  EXPECT_EQ(other.Await().value(), "value");
}

TEST_P(KeyValueStoreTest, AWatchHearsAValueThatWasThereAndOneThatComesLater) {
  Mailbox before, after;
  const auto later = service_->Join()->Watch("key", after.callback());
  ASSERT_TRUE(store_->Set("key", "value", Soon()).ok());
  const auto earlier = service_->Join()->Watch("key", before.callback());
  EXPECT_EQ(before.Await().value(), "value");
  EXPECT_EQ(after.Await().value(), "value");
}

TEST_P(KeyValueStoreTest, AWatchHearsOnlyTheFirstValue) {
  Mailbox mailbox;
  auto watcher = store_->Watch("key", mailbox.callback());
  ASSERT_TRUE(store_->Set("key", "one", Soon()).ok());
  EXPECT_EQ(mailbox.Await().value(), "one");
  ASSERT_TRUE(store_->Set("key", "two", Soon()).ok());
  watcher.reset();
  EXPECT_EQ(mailbox.count(), 1u);
}

TEST_P(KeyValueStoreTest, AWatcherThatIsDestroyedHearsNothing) {
  Mailbox mailbox;
  auto watcher = store_->Watch("key", mailbox.callback());
  watcher.reset();
  ASSERT_TRUE(store_->Set("key", "value", Soon()).ok());
  EXPECT_EQ(mailbox.count(), 0u);
}

TEST_P(KeyValueStoreTest, DestroyingAWatcherWaitsForItsCallback) {
  Mutex mutex;
  CondVar changed;
  bool inside = false;
  std::atomic<bool> finished{false};
  auto watcher = store_->Watch("key", [&](absl::StatusOr<std::string>) {
    {
      MutexLock lock(&mutex);
      inside = true;
      changed.SignalAll();
    }
    // A callback may use the store.
    store_->Get("key", Soon()).IgnoreError();
    finished = true;
  });
  ASSERT_TRUE(store_->Set("key", "value", Soon()).ok());
  {
    MutexLock lock(&mutex);
    while (!inside) changed.Wait(&mutex);
  }
  watcher.reset();
  EXPECT_TRUE(finished);
}

TEST_P(KeyValueStoreTest, WatchersMayOutliveTheStore) {
  Mailbox mailbox;
  auto second = service_->Join();
  auto watcher = second->Watch("key", mailbox.callback());
  second.reset();
  ASSERT_TRUE(store_->Set("key", "value", Soon()).ok());
  EXPECT_EQ(mailbox.Await().value(), "value");
}

INSTANTIATE_TEST_SUITE_P(
    All, KeyValueStoreTest,
    ::testing::Values(StoreKind{"in_memory", [] { return std::make_unique<InMemoryService>(); }},
                      StoreKind{"grpc", [] { return std::make_unique<GrpcService>(); }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gradsync
