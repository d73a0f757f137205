#include "core/links/silence_watch.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

// A look that comes later than this was held up: this process did not run, and nobody could ask.
constexpr absl::Duration kLate = absl::Seconds(1);

}  // namespace

std::string RemoteOfPeer(const std::string& peer) {
  absl::string_view name = peer;
  if (!absl::ConsumePrefix(&name, "ipv4:") && !absl::ConsumePrefix(&name, "ipv6:")) return "";
  std::string remote = absl::StrReplaceAll(name, {{"%5B", "["}, {"%5D", "]"}});
  const bool here = absl::StartsWith(remote, "127.") || absl::StartsWith(remote, "[::1]:");
  return here ? "" : remote;
}

SilenceWatch::SilenceWatch(absl::Duration failure_timeout, Look look, Shut shut)
    : failure_timeout_(failure_timeout),
      silence_(SilenceFor(failure_timeout)),
      look_(std::move(look)),
      shut_(std::move(shut)),
      thread_([this] { Run(); }) {}

SilenceWatch::~SilenceWatch() {
  {
    MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void SilenceWatch::Add(const std::string& peer, std::weak_ptr<Watched> watched) {
  std::string remote = RemoteOfPeer(peer);
  if (remote.empty()) return;
  MutexLock lock(&mutex_);
  watched_.emplace(std::move(remote), std::move(watched));
  changed_.SignalAll();
}

std::set<std::string> SilenceWatch::Silent(MonotonicTime now, const std::set<std::string>& remotes,
                                           const std::vector<TcpConnection>& connections) {
  std::set<std::string> silent;
  std::map<uint64_t, MonotonicTime> unacked_since;
  for (const TcpConnection& connection : connections) {
    if (connection.unacked == 0 || remotes.count(connection.remote) == 0) continue;
    const auto before = unacked_since_.find(connection.id);
    MonotonicTime since = now;
    if (before != unacked_since_.end()) {
      since = std::max(before->second, now - connection.since_ack);
    }
    unacked_since[connection.id] = since;
    if (now - since >= silence_.limit) silent.insert(connection.remote);
  }
  unacked_since_.swap(unacked_since);
  return silent;
}

void SilenceWatch::Run() {
  MonotonicTime looked = MonotonicTime::Now();
  mutex_.Lock();
  while (!closing_) {
    if (watched_.empty()) {
      changed_.Wait(&mutex_);
      looked = MonotonicTime::Now();
      continue;
    }
    const Deadline next = Deadline::In(silence_.interval);
    while (!closing_ && !changed_.WaitWithDeadline(&mutex_, next)) {
    }
    if (closing_) break;
    for (auto each = watched_.begin(); each != watched_.end();) {
      each = each->second.expired() ? watched_.erase(each) : std::next(each);
    }
    std::set<std::string> remotes;
    for (const auto& [remote, watched] : watched_) remotes.insert(remote);
    mutex_.Unlock();
    const std::vector<TcpConnection> connections = look_();
    const MonotonicTime now = MonotonicTime::Now();
    if (now - looked > silence_.interval + kLate) unacked_since_.clear();
    looked = now;
    const std::set<std::string> silent = Silent(now, remotes, connections);
    mutex_.Lock();
    std::vector<std::shared_ptr<Watched>> ended;
    for (const std::string& remote : silent) {
      const auto [begin, end] = watched_.equal_range(remote);
      for (auto each = begin; each != end; ++each) ended.push_back(each->second.lock());
      watched_.erase(begin, end);
    }
    mutex_.Unlock();
    const absl::Status why = Suspicion(
        absl::UnavailableError(absl::StrCat("what was sent has not been acknowledged for ",
                                            absl::FormatDuration(failure_timeout_))),
        silence_.patience);
    for (const std::shared_ptr<Watched>& each : ended) {
      if (each != nullptr) each->OnSilence(why);
    }
    for (const TcpConnection& connection : connections) {
      if (silent.count(connection.remote) > 0) shut_(connection.id);
    }
    ended.clear();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace gradsync
