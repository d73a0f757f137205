#ifndef GRADSYNC_CORE_LINKS_SILENCE_WATCH_H_
#define GRADSYNC_CORE_LINKS_SILENCE_WATCH_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/links/tcp_connections.h"

namespace gradsync {

// When a connection counts as silent, and for how long others are believed to know better why. A
// process that stops keeps its host, which goes on to acknowledge; so a connection on which nothing
// is acknowledged is cut, or its peer's host is gone. That one is known to be lost by a judgement
// (core/group/liveness.h) half a second after the failure timeout.
struct Silence {
  absl::Duration interval;  // in which idle connections are asked for a sign, and all are looked at
  absl::Duration limit;     // without an acknowledgement of what was sent
  absl::Duration patience;  // of the suspicion (core/base/errors.h) with which the connection ends
};

// For a finite `failure_timeout`. Silence is noticed by then, and the suspicion is believed
// 0.75 to 1.5 seconds later.
inline Silence SilenceFor(absl::Duration failure_timeout) {
  const absl::Duration interval = std::min(failure_timeout / 40, absl::Milliseconds(250));
  return {interval, failure_timeout - 2 * interval, 2 * interval + absl::Milliseconds(750)};
}

// Looks at the TCP connections below streams. Where the peer's host has acknowledged nothing on one
// for too long, it ends all that lead to that peer, first the streams and then the connections: what waits
// to be sent on it would keep a stream that has been cancelled from closing. It looks at what the kernel says, and not at whether a peer
// answers: one that is stopped, or has much to do, is not silent, and a job that is suspended as a
// whole and resumed goes on.
//
// Thread-safe. Has a thread, which sleeps while there is nothing to look at.
class SilenceWatch {
 public:
  class Watched {
   public:
    virtual ~Watched() = default;
    // On the watch's thread, at most once; must not block. `why` is a suspicion.
    virtual void OnSilence(absl::Status why) = 0;
  };
  using Look = std::function<std::vector<TcpConnection>()>;
  using Shut = std::function<void(uint64_t id)>;

  explicit SilenceWatch(absl::Duration failure_timeout, Look look = TcpConnections,
                        Shut shut = ShutTcpConnection);
  ~SilenceWatch();
  SilenceWatch(const SilenceWatch&) = delete;
  SilenceWatch& operator=(const SilenceWatch&) = delete;

  // `peer` as gRPC names it, "ipv4:10.0.0.7:4000". Peers on this host and those with other kinds of
  // names are not watched. Until the weak pointer expires.
  void Add(const std::string& peer, std::weak_ptr<Watched> watched);

 private:
  void Run();
  // Those of `remotes` to which a connection is silent.
  std::set<std::string> Silent(MonotonicTime now, const std::set<std::string>& remotes,
                               const std::vector<TcpConnection>& connections);

  const absl::Duration failure_timeout_;
  const Silence silence_;
  const Look look_;
  const Shut shut_;
  std::map<uint64_t, MonotonicTime> unacked_since_;  // by connection; the thread's
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::multimap<std::string, std::weak_ptr<Watched>> watched_ ABSL_GUARDED_BY(mutex_);  // by remote
  Thread thread_;  // last: uses all of the above
};

// "10.0.0.7:4000" of "ipv4:10.0.0.7:4000", "[fe80::1]:4000" of "ipv6:%5Bfe80::1%5D:4000"; empty for
// other names and for loopback addresses.
std::string RemoteOfPeer(const std::string& peer);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_SILENCE_WATCH_H_
