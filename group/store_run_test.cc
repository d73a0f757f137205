#include "group/store_run.h"

#include <memory>
#include <string>

#include "base/deadline.h"
#include "group/in_memory_store.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(StoreRunTest, WhoAsksIsToldWhatWasPublished) {
  const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
  EXPECT_EQ(AskForRun(*store, Deadline::Now()).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  ASSERT_EQ(PublishRun(*store, {"1234.0 of Slurm", 3}, Deadline::Now()), absl::OkStatus());
  const auto run = AskForRun(*store, Deadline::Now());
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_EQ(run->run_id, "1234.0 of Slurm");
  EXPECT_EQ(run->attempt, 3);
}

TEST(StoreRunTest, SomethingElseInItsPlaceIsSaid) {
  for (const std::string text : {"", "job", "x job", "3 "}) {
    const std::shared_ptr<KeyValueStore> store = NewInMemoryStore();
    ASSERT_EQ(store->Set("run", text, Deadline::Now()), absl::OkStatus());
    EXPECT_EQ(AskForRun(*store, Deadline::Now()).status().code(), absl::StatusCode::kDataLoss)
        << text;
  }
}

}  // namespace
}  // namespace gradsync
