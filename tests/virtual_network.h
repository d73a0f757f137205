// Streams and messages between the processes of a VirtualWorld, with all that happens to them.

#ifndef GRADSYNC_TESTS_VIRTUAL_NETWORK_H_
#define GRADSYNC_TESTS_VIRTUAL_NETWORK_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/links/frame_stream.h"
#include "core/links/silence_watch.h"
#include "tests/virtual_world.h"

namespace gradsync {

// As kind as TCP and no kinder. A stream keeps its order, streams overtake each other; a frame's
// bytes are read when it leaves, and given back then or later; payloads come in odd parts. A
// process that dies resets its streams. A cut is noticed as streams over gRPC notice it
// (core/links/silence_watch.h), and that a process is stopped after 40 seconds.
//
// Belongs to one world, which it must outlive. Not thread-safe, as everything there.
class VirtualNetwork {
 public:
  // `failure_timeout`: finite, that of the links.
  VirtualNetwork(VirtualWorld* world, absl::Duration failure_timeout)
      : world_(world), silence_(SilenceFor(failure_timeout)) {}

  // How the process opens and accepts streams.
  std::shared_ptr<StreamLink> LinkOf(int process);

  // Faults. A cut holds up what is sent between the two processes; healing lets it through.
  void Cut(int a, int b);
  void Heal(int a, int b);
  bool cut(int a, int b) const { return cuts_.count(Pair(a, b)) > 0; }
  // To be called after the world has stopped the process: others find it silent.
  void NoteStopped(int process);
  // The process is dead, and has lost all that connected it. It may run on, alone.
  void Kill(int process);
  bool dead(int process) const { return dead_.count(process) > 0; }
  // Breaks a stream, drawn of those that are open. Returns its two processes, or {-1, -1} when
  // there is none.
  std::pair<int, int> BreakStream();
  // For a while messages take up to this much longer.
  void Slow(absl::Duration most, absl::Duration time);

  // A message: `arrive` runs in a thread of `to`, some time later, or never. With `receive`, that
  // runs on no thread when the message has reached the host, whether the process runs or not.
  void Send(int from, int to, std::function<void()> arrive,
            std::function<void()> receive = nullptr);

  // Messages of one connection, which are heard in the order in which they were sent, one at a time.
  struct Lane {
    int64_t sent = 0;                                  // numbers given
    int64_t heard = 0;                                 // below this
    std::map<int64_t, std::function<void()>> arrived;  // and not heard yet
    bool hearing = false;
  };
  void Send(const std::shared_ptr<Lane>& lane, int from, int to, std::function<void()> arrive);

  // A connection of two processes, from now until End(). `lost` is called, on no thread, with each
  // of the two when it is to learn that the other one is gone, or that nothing reaches it: `silent`.
  enum class SessionKind { kStream, kCalls };
  using SessionId = int64_t;
  SessionId Begin(SessionKind kind, int a, int b,
                  std::function<void(int process, bool silent)> lost);
  void End(SessionId session) { sessions_.erase(session); }

  // What was done against the contract of core/links/frame_stream.h: memory changed while it was
  // lent.
  const absl::Status& wrong() const { return wrong_; }

 private:
  class Link;
  class Listener;
  class Stream;
  struct Loan;
  struct Connection;
  struct Accepting;
  struct Session {
    SessionKind kind;
    int a, b;
    std::function<void(int, bool)> lost;
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  static std::pair<int, int> Pair(int a, int b) { return {std::min(a, b), std::max(a, b)}; }
  absl::Duration Latency();
  void Hear(const std::shared_ptr<Lane>& lane);
  void Pump(const ConnectionPtr& connection, int from);
  void Deliver(const ConnectionPtr& connection, int to);
  void MaybeEnd(const ConnectionPtr& connection, int side);
  void Close(const ConnectionPtr& connection, int side, absl::Status status);
  void Accept(const ConnectionPtr& connection, const std::shared_ptr<Accepting>& accepting);
  void GiveBack(int process, std::shared_ptr<Loan> loan);
  Payload CutUp(std::string bytes);
  void LoseSessions(int a, int b, bool tell_b, absl::optional<SessionKind> silent);

  VirtualWorld* const world_;
  const gradsync::Silence silence_;
  std::map<std::string, std::shared_ptr<Accepting>> listening_;
  std::map<int64_t, std::weak_ptr<Connection>> connections_;
  std::map<SessionId, Session> sessions_;
  std::set<std::pair<int, int>> cuts_;
  std::map<std::pair<int, int>, std::vector<std::function<void()>>> held_up_;
  std::map<int, int64_t> stops_;  // by process: how often
  int64_t cut_count_ = 0;
  std::map<std::pair<int, int>, int64_t> cut_number_;
  std::set<int> dead_;
  absl::Duration slow_;
  absl::Duration slow_until_;
  int64_t numbers_ = 0;
  int next_port_ = 1024;
  absl::Status wrong_;
};

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_VIRTUAL_NETWORK_H_
