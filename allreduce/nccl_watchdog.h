#ifndef GRADSYNC_ALLREDUCE_NCCL_WATCHDOG_H_
#define GRADSYNC_ALLREDUCE_NCCL_WATCHDOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "allreduce/nccl_communicator.h"
#include "allreduce/nccl_work.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/key_value_store.h"
#include "core/group/worker_group.h"

namespace gradsync {

struct NcclWatchdogOptions {
  // Work that is not done `group.timeout` after it could begin is lost: after what was queued
  // before it and what it waits for on this rank's compute stream. With one rank the store is not
  // used.
  WorkerGroup group;
  NcclCommunicator* communicator = nullptr;  // must outlive the watchdog
  // How long other ranks have to say where they are. Those who do not are the silent ones.
  absl::Duration grace = absl::Seconds(3);
  // Between two looks at queued work.
  absl::Duration interval = absl::Milliseconds(5);
};

// Watches what is queued on the communication stream, which nobody waits for, and the
// communicator's asynchronous errors. NCCL itself notices no silent peer, and says nothing of who
// it is. So when one rank's work is overdue or its communicator fails, it says so in the store
// ("nccl/suspect"), where every rank's watchdog looks; each then publishes what it launched and
// what is done ("nccl/progress/RANK"). The rank that suspects waits for these and names those who
// did not answer, or did not launch what it waits for.
//
// Thread-safe. Nothing blocks except where said.
class NcclWatchdog {
 public:
  // `on_failure` is called at most once, on a thread of this object, with DEADLINE_EXCEEDED or the
  // communicator's error, and who is silent or behind. It is to end the group; the watchdog does
  // not abort by itself.
  NcclWatchdog(NcclWatchdogOptions options, std::function<void(absl::Status)> on_failure);

  // Ends watching. May wait for other ranks' answers, for the grace.
  ~NcclWatchdog();

  NcclWatchdog(const NcclWatchdog&) = delete;
  NcclWatchdog& operator=(const NcclWatchdog&) = delete;

  // For `bucket` where parameters are broadcast after a step.
  static constexpr int kBroadcast = std::numeric_limits<int>::max();

  // This rank begins to hand the collectives of a bucket to NCCL. In the order of all ranks.
  void Launched(int64_t step, int bucket);

  // Watches work whose events were both recorded, in the order of the stream.
  void Watch(int64_t step, int bucket, std::shared_ptr<NcclWork> work);

  // A call into NCCL failed: finds out who is to blame, and calls on_failure.
  void Fail(absl::Status status);

  // The group has failed: looks at nothing any more, but still answers others.
  void Stop();

  // Blocks until all that is watched is done. Errors: DEADLINE_EXCEEDED; FAILED_PRECONDITION after
  // a failure or Stop().
  absl::Status Drain(Deadline deadline);

 private:
  // Orders buckets of all steps. None: before the first.
  struct Position {
    int64_t step = 0;
    int bucket = -1;
  };
  struct Watched {
    Position position;
    std::shared_ptr<NcclWork> work;
  };
  static bool Before(Position a, Position b);
  static std::string Describe(Position position);

  void Loop();
  absl::Status Look(Position* waited_for);
  void PublishProgress();
  std::string WhoIsBehind(Position waited_for);

  const NcclWatchdogOptions options_;
  const std::function<void(absl::Status)> on_failure_;

  mutable Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool suspected_ ABSL_GUARDED_BY(mutex_) = false;  // by any rank
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status found_ ABSL_GUARDED_BY(mutex_);  // by Fail()
  Position launched_ ABSL_GUARDED_BY(mutex_);
  Position done_ ABSL_GUARDED_BY(mutex_);
  std::deque<Watched> watched_ ABSL_GUARDED_BY(mutex_);

  // Of the thread alone.
  absl::optional<PatientDeadline> late_;  // for the head of watched_, once that could begin
  bool published_ = false;

  std::unique_ptr<KeyValueStore::Watcher> watcher_;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_NCCL_WATCHDOG_H_
