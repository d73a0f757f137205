#ifndef GRADSYNC_ALLREDUCE_IPC_WATCHDOG_H_
#define GRADSYNC_ALLREDUCE_IPC_WATCHDOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "allreduce/ipc_flags.h"
#include "allreduce/nccl_work.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"

namespace gradsync {

struct IpcWatchdogOptions {
  const IpcFlags* flags = nullptr;  // must outlive the watchdog
  std::vector<std::string> names;   // of ranks, for errors
  // Work that is not done this long after it could begin is lost: after what was queued before it
  // and what it waits for on this rank's compute stream.
  absl::Duration timeout = absl::Seconds(60);
  // Between two looks at queued work.
  absl::Duration interval = absl::Milliseconds(5);
};

// Watches what a rank has queued, for which no thread waits. When it is overdue the flags say, to
// the host as to the streams, whose fault that is.
//
// Thread-safe. Nothing blocks except where said.
class IpcWatchdog {
 public:
  // `on_failure` is called at most once, on the thread of this object, with DEADLINE_EXCEEDED
  // naming all ranks that are behind, or an error of CUDA.
  IpcWatchdog(IpcWatchdogOptions options, std::function<void(absl::Status)> on_failure);
  ~IpcWatchdog();

  IpcWatchdog(const IpcWatchdog&) = delete;
  IpcWatchdog& operator=(const IpcWatchdog&) = delete;

  // Watches the work of exchange number `launch`, whose events were both recorded, in the order of
  // the stream. `name` as in errors.
  void Watch(uint32_t launch, std::string name, std::shared_ptr<NcclWork> work);

  // The group has failed: looks at nothing any more.
  void Stop();

  // Blocks until all that is watched is done. Errors: DEADLINE_EXCEEDED, naming who is behind;
  // FAILED_PRECONDITION after a failure or Stop().
  absl::Status Drain(Deadline deadline);

 private:
  struct Watched {
    uint32_t launch = 0;
    std::string name;
    std::shared_ptr<NcclWork> work;
  };

  void Loop();
  absl::Status Look();
  absl::Status Late(const Watched& watched, const std::string& what) const;
  const std::string& Own() const;

  const IpcWatchdogOptions options_;
  const std::function<void(absl::Status)> on_failure_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<Watched> watched_ ABSL_GUARDED_BY(mutex_);

  absl::optional<PatientDeadline> late_;  // of the thread: for the head, once that could begin
  std::thread thread_;                    // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_IPC_WATCHDOG_H_
