#include "allreduce/task_queue.h"

#include <memory>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace gradsync
