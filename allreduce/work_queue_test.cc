#include "allreduce/work_queue.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(TaskQueueTest, RunsTasksInTheOrderInWhichTheyWereAdded) {
  Mutex mutex;
  CondVar changed;
  std::vector<int> ran;
  TaskQueue queue;
  for (int i = 0; i < 100; ++i) {
    queue.Add([&, i] {
      MutexLock lock(&mutex);
      ran.push_back(i);
      changed.Signal();
    });
  }
  MutexLock lock(&mutex);
  while (ran.size() < 100) changed.Wait(&mutex);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ran[i], i);
}

TEST(TaskQueueTest, StoppingWaitsForTheTaskThatRunsAndDropsTheOthers) {
  Mutex mutex;
  CondVar changed;
  bool begun = false;
  bool ended = false;
  auto token = std::make_shared<int>(0);
  bool second_ran = false;
  TaskQueue queue;
  // Its destruction, not its run, lets the first task end.
  struct Dropped {
    ~Dropped() {
      if (token == nullptr) return;
      MutexLock lock(mutex);
      token.reset();
      changed->Signal();
    }
    Dropped(std::shared_ptr<int> t, Mutex* m, CondVar* c)
        : token(std::move(t)), mutex(m), changed(c) {}
    Dropped(Dropped&&) = default;
    std::shared_ptr<int> token;
    Mutex* mutex;
    CondVar* changed;
  };
  Dropped dropped(token, &mutex, &changed);
  queue.Add([&] {
    MutexLock lock(&mutex);
    begun = true;
    changed.Signal();
    while (token.use_count() > 1) changed.Wait(&mutex);  // until the task below is dropped
    ended = true;
  });
  queue.Add([dropped = std::move(dropped), &second_ran] { second_ran = true; });
  {
    MutexLock lock(&mutex);
    while (!begun) changed.Wait(&mutex);
  }
  queue.Stop();
  EXPECT_TRUE(ended);
  EXPECT_FALSE(second_ran);
  queue.Add([&] { second_ran = true; });
  queue.Stop();
  EXPECT_FALSE(second_ran);
}

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
