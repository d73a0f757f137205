#include "allreduce/work_queue.h"

#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(60)); }

TEST(WorkQueueTest, WorkIsDoneInOrderAndItsHandlesResolve) {
  WorkQueue queue([](const absl::Status& status) { ADD_FAILURE() << status; });
  std::vector<int> done;
  std::vector<SyncHandle> handles;
  for (int i = 0; i < 100; ++i) {
    handles.push_back(queue.Add("work", [&done, i] {
      done.push_back(i);
      return absl::OkStatus();
    }));
  }
  for (int i = 0; i < 100; ++i) EXPECT_EQ(handles[i].Wait(Soon()), absl::OkStatus());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[i], i);
}

TEST(WorkQueueTest, AnErrorIsReportedAndItsHandleWaitsForTheGroupsFailure) {
  Notification reported;
  WorkQueue queue([&](const absl::Status& status) {
    EXPECT_EQ(status, absl::DataLossError("here"));
    queue.Halt();
    reported.Notify();
  });
  const SyncHandle failed = queue.Add("work", [] { return absl::DataLossError("here"); });
  reported.WaitForNotification();
  const SyncHandle later = queue.Add("work", [] {
    ADD_FAILURE() << "began after a failure";
    return absl::OkStatus();
  });
  EXPECT_FALSE(failed.done());
  EXPECT_FALSE(later.done());
  queue.Fail(absl::AbortedError("rank 1 failed first"));
  for (const SyncHandle& handle : {failed, later}) {
    EXPECT_EQ(handle.Wait(Soon()), absl::AbortedError("rank 1 failed first"));
  }
  EXPECT_TRUE(queue.Add("work", [] { return absl::OkStatus(); }).done());
}

TEST(WorkQueueTest, WorkThatEndsAfterAFailureDoesNotSucceed) {
  WorkQueue queue([](absl::Status) {});
  Notification begun;
  Notification go_on;
  const SyncHandle handle = queue.Add("work", [&] {
    begun.Notify();
    go_on.WaitForNotification();
    return absl::OkStatus();
  });
  begun.WaitForNotification();
  queue.Halt();
  go_on.Notify();
  queue.Stop();
  EXPECT_FALSE(handle.done());
  queue.Fail(absl::AbortedError("rank 1 failed first"));
  EXPECT_TRUE(absl::IsAborted(handle.Wait(Soon())));
}

}  // namespace
}  // namespace gradsync
