#include "core/group/heartbeat.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/monotonic_time.h"
#include "core/base/scheduler.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"

namespace gradsync {

std::string RankBeatKey(absl::string_view prefix, int rank) {
  return absl::StrCat(prefix, "beat/rank/", rank);
}

std::string ServerBeatKey(absl::string_view prefix, int server) {
  return absl::StrCat(prefix, "beat/server/", server);
}

std::string GoneKey(absl::string_view beat_key) { return absl::StrCat(beat_key, "/gone"); }

std::string InVainKey(absl::string_view prefix) { return absl::StrCat(prefix, "in_vain"); }

absl::StatusOr<std::unique_ptr<Heartbeat>> Heartbeat::Start(HeartbeatOptions options,
                                                            Deadline deadline) {
  GS_RETURN_IF_ERROR(options.store->Set(options.key, Beat().ToText(), deadline));
  return absl::WrapUnique(new Heartbeat(std::move(options)));
}

Heartbeat::Heartbeat(HeartbeatOptions options)
    : options_(std::move(options)), thread_([this] { Run(); }) {}

Heartbeat::~Heartbeat() { Stop(); }

void Heartbeat::Leave() {
  Stop();
  Send(/*left=*/true, Deadline::In(options_.failure_timeout / 2));
}

void Heartbeat::Stop() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool Heartbeat::Send(bool left, Deadline deadline) {
  Beat beat;
  beat.number = ++number_;
  beat.working = options_.activity->working();
  beat.done = options_.activity->done();
  beat.proven = options_.activity->proven();
  beat.left = left;
  // A simulated member has no threads that the kernel knows of.
  stopped_thread_ = Scheduler::current() == nullptr ? StoppedThread(stopped_thread_) : 0;
  beat.stopped_thread = stopped_thread_;
  return options_.store->Set(options_.key, beat.ToText(), deadline).ok();
}

void Heartbeat::Run() {
  const absl::Duration timeout = options_.failure_timeout;
  const absl::Duration interval = BeatInterval(timeout);
  MonotonicTime heard = MonotonicTime::Now();  // of the store
  mutex_.Lock();
  while (!closing_) {
    mutex_.Unlock();
    const MonotonicTime asked = MonotonicTime::Now();
    // Half, so that one lost answer is not the end.
    const Deadline deadline = Deadline::At(std::min(asked + timeout / 2, heard + timeout));
    const bool answered = Send(/*left=*/false, deadline);
    const MonotonicTime now = MonotonicTime::Now();
    if (answered) {
      heard = now;
    } else if (now - deadline.time() > interval) {
      // This process did not run, and so neither asked nor heard.
      heard += now - asked;
    } else if (now - heard >= timeout) {
      if (options_.on_silence) options_.on_silence();
      return;
    }
    const Deadline next = Deadline::At(asked + interval);
    mutex_.Lock();
    while (!closing_ && !changed_.WaitWithDeadline(&mutex_, next)) {
    }
    const absl::Duration late = MonotonicTime::Now() - std::max(now, next.time());
    if (late > interval) heard += late;
  }
  mutex_.Unlock();
}

}  // namespace gradsync
