#include "core/group/store_run.h"

#include <memory>
#include <string>

#include "core/base/deadline.h"
#include "core/group/key_value_store.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(StoreRunTest, WhoAsksIsToldWhatWasPublished) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  EXPECT_EQ(AskForRun(*store, Deadline::Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(PublishRun(*store, {"1234.0 of Slurm", 3, 2, 1}, Deadline::Now()), absl::OkStatus());
  const auto run = AskForRun(*store, Deadline::Now());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->run_id, "1234.0 of Slurm");
  EXPECT_EQ(run->attempt, 3);
  EXPECT_EQ(run->workers, 2);
  EXPECT_EQ(run->servers, 1);
}

TEST(StoreRunTest, WhoIsMissingIsNamed) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  EXPECT_EQ(DescribeMissing(*store), "");
  const StoreRun run = {"job", 0, 4, 2};
  ASSERT_EQ(PublishRun(*store, run, Deadline::Now()), absl::OkStatus());
  ASSERT_EQ(store->Set(CameKey(run, 1), "", Deadline::Now()), absl::OkStatus());
  ASSERT_EQ(store->Set(RegisteredKey(run, 0), "a:1", Deadline::Now()), absl::OkStatus());
  EXPECT_EQ(DescribeMissing(*store),
            "ranks 2, 3 of 4 have not come to rank 0's store, server 1 of 2 has not registered in "
            "rank 0's store");
  for (const int rank : {2, 3}) {
    ASSERT_EQ(store->Set(CameKey(run, rank), "", Deadline::Now()), absl::OkStatus());
  }
  ASSERT_EQ(store->Set(RegisteredKey(run, 1), "a:2", Deadline::Now()), absl::OkStatus());
  EXPECT_EQ(DescribeMissing(*store), "");
}

TEST(StoreRunTest, SomethingElseInItsPlaceIsSaid) {
  for (const std::string text : {"", "job", "x job", "3 ", "3 2 1", "3 2 1 ", "3 x 1 job"}) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    ASSERT_EQ(store->Set("run", text, Deadline::Now()), absl::OkStatus());
    EXPECT_EQ(AskForRun(*store, Deadline::Now()).status().code(), absl::StatusCode::kDataLoss)
        << text;
  }
}

}  // namespace
}  // namespace gradsync
