#include "core/base/run_bounded.h"

#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"

namespace gradsync {

bool RunBounded(absl::Duration bound, std::function<void()> call) {
  struct End {
    Mutex mutex;
    CondVar changed;
    bool reached ABSL_GUARDED_BY(mutex) = false;
  };
  const auto end = std::make_shared<End>();
  std::thread thread([end, call = std::move(call)]() mutable {
    call();
    call = nullptr;
    MutexLock lock(&end->mutex);
    end->reached = true;
    end->changed.SignalAll();
  });
  const Deadline deadline = Deadline::In(bound);
  bool reached = false;
  {
    MutexLock lock(&end->mutex);
    while (!end->reached && !end->changed.WaitWithDeadline(&end->mutex, deadline)) {
    }
    reached = end->reached;
  }
  if (reached) {
    thread.join();
  } else {
    thread.detach();
  }
  return reached;
}

}  // namespace gradsync
