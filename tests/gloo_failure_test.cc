// Failures while Gloo connects, where it looks at nothing but its own connections.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/gloo_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "core/group/key_value_store.h"
#include "core/plan/plan.h"
#include "gtest/gtest.h"
#include "tests/forwarding_store.h"
#include "tests/rank_threads.h"

namespace gradsync {
namespace {

#ifdef USE_C10D_GLOO  // not with pip's LibTorch, which lacks its headers

constexpr int kRanks = 2;

Plan SomePlan() {
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets({{"a", {3000}, {1}, 0}}, {{0}}, optimizer, kRanks, 256);
}

// The store of a rank that says where it listens, and then comes no further than to ask for the
// other's address: as if it were stopped there. That it listens at an address above the other's
// makes it the one that opens the connection.
class StuckStore : public ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;

  absl::Status Set(absl::string_view key, absl::string_view value, Deadline deadline) override {
    std::string address(value);
    if (absl::EndsWith(key, "gloo/0/1")) {
      constexpr size_t kAddress = 4;  // in sockaddr_in
      address.replace(kAddress, 4, "\x7f\xff\xff\xfe");
    }
    return ForwardingStore::Set(key, address, deadline);
  }
  absl::StatusOr<std::string> Get(absl::string_view key, Deadline deadline) override {
    const bool of_other = absl::EndsWith(key, "gloo/0/0");
    return ForwardingStore::Get(absl::StrCat(key, of_other ? "/never" : ""), deadline);
  }
};

// The other rank waited for five times the timeout, whatever the group knew.
TEST(GlooFailureTest, AFailureEndsTheWaitForARankThatDoesNotConnect) {
  const auto store = NewInMemoryStore();
  const Deadline deadline = Deadline::In(absl::Minutes(1));
  const MonotonicTime begin = MonotonicTime::Now();
  RunRanks(kRanks + 1, [&](int rank) {
    GlooOptions options;
    options.group.rank = rank;
    options.group.world_size = kRanks;
    options.group.run_id = "gloo";
    options.group.address = "127.0.0.1";
    options.group.timeout = absl::Seconds(12);
    options.group.store = store;
    if (rank == kRanks) {  // the watchdog
      const std::string prefix = options.group.Key("gloo/0/");
      ASSERT_TRUE(store->Get(absl::StrCat(prefix, "0"), deadline).ok());
      ASSERT_TRUE(store->Get(absl::StrCat(prefix, "1"), deadline).ok());
      store->Fail(options.group.JobKey(""), "rank 1 lost: no sign of life for 3s", deadline)
          .IgnoreError();
      return;
    }
    if (rank == 1) options.group.store = std::make_shared<StuckStore>(store);
    const auto sync = CreateGlooGradientSync(options);
    ASSERT_TRUE(sync.ok()) << sync.status();
    const absl::Status status = (*sync)->Bind(SomePlan(), deadline).status();
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_EQ(status.message(), "rank 1 lost: no sign of life for 3s");
  });
  EXPECT_LT(MonotonicTime::Now() - begin, absl::Seconds(30));
}

#endif  // USE_C10D_GLOO

}  // namespace
}  // namespace gradsync
