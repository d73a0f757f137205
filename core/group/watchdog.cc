#include "core/group/watchdog.h"

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/group/heartbeat.h"

namespace gradsync {

Watchdog::Watchdog(WatchdogOptions options)
    : options_(std::move(options)), liveness_(options_.failure_timeout, MonotonicTime::Now()) {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    watched_.push_back({RankBeatKey(options_.prefix, rank),
                        liveness_.Add(absl::StrCat("rank ", rank), Liveness::Kind::kRank)});
  }
  thread_ = Thread([this] { Run(); });
}

Watchdog::~Watchdog() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void Watchdog::AddServer(absl::string_view address) {
  MutexLock lock(&mutex_);
  const int server = servers_++;
  watched_.push_back({ServerBeatKey(options_.prefix, server),
                      liveness_.Add(absl::StrCat("server ", server, " (", address, ")"),
                                    Liveness::Kind::kServer)});
}

absl::optional<std::string> Watchdog::Obstacle(MonotonicTime now) {
  const bool awaits = options_.obstacle != nullptr && ranks_met_ < options_.world_size;
  std::string obstacle = awaits ? options_.obstacle() : "";
  if (obstacle.empty()) {
    obstructed_.reset();
    return absl::nullopt;
  }
  if (!obstructed_.has_value()) obstructed_ = now;
  if (now - *obstructed_ < options_.failure_timeout) return absl::nullopt;
  return obstacle;
}

void Watchdog::Run() {
  MutexLock lock(&mutex_);
  while (!closing_) {
    const MonotonicTime now = MonotonicTime::Now();
    std::vector<int> gone;
    absl::optional<std::string> verdict = liveness_.Judge(now);
    if (!verdict.has_value() &&
        options_.store->Get(InVainKey(options_.prefix), Deadline::Now()).ok()) {
      verdict = liveness_.Blame(now);
    }
    if (!verdict.has_value()) verdict = Obstacle(now);
    if (verdict.has_value()) {
      options_.store->Fail(options_.prefix, *verdict, Deadline::Now()).status().IgnoreError();
      return;
    }
    ranks_met_ = 0;
    for (const Watched& watched : watched_) {
      // Before its beat is read, which may be its last.
      if (options_.store->Get(GoneKey(watched.key), Deadline::Now()).ok()) {
        gone.push_back(watched.member);
      }
      const absl::StatusOr<std::string> text = options_.store->Get(watched.key, Deadline::Now());
      if (!text.ok()) continue;  // it has not begun
      if (watched.member < options_.world_size) ++ranks_met_;
      const absl::optional<Beat> beat = Beat::Parse(*text);
      if (beat.has_value()) liveness_.OnBeat(watched.member, *beat, now);
    }
    for (const int member : gone) liveness_.OnGone(member);
    const Deadline next = Deadline::At(now + BeatInterval(options_.failure_timeout));
    while (!closing_ && !changed_.WaitWithDeadline(&mutex_, next)) {
    }
  }
}

}  // namespace gradsync
