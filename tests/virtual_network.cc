#include "tests/virtual_network.h"

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

// As gRPC's keepalive notices that a process does not answer.
constexpr absl::Duration kKeepalive = absl::Seconds(40);

uint64_t HashOf(absl::Span<const char> bytes) {
  uint64_t hash = 14695981039346656037u;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 1099511628211u;
  return hash;
}

enum Side { kOpened = 0, kAccepted = 1 };

}  // namespace

struct VirtualNetwork::Loan {
  OutgoingFrame frame;
  uint64_t hash = 0;
};

struct VirtualNetwork::Accepting {
  std::string address;
  int process = 0;
  StreamAcceptor acceptor;
  bool closing = false;
  int open = 0;
  std::vector<std::weak_ptr<Stream>> streams;
};

struct VirtualNetwork::Connection {
  struct Arrived {
    proto::FrameHeader header;
    Payload payload;
    bool end = false;  // the peer has finished
  };
  struct End {
    int process = 0;
    std::string peer_name;
    std::shared_ptr<FrameSink> sink;
    std::deque<std::shared_ptr<Loan>> urgent, normal;  // to be sent
    bool sending = false;                              // a frame is on its way
    bool finished = false;
    bool finish_sent = false;
    std::deque<Arrived> arrived;
    bool end_received = false;  // by the peer's host
    bool heard_end = false;
    bool delivering = false;
    absl::optional<absl::Status> closed;
    bool told = false;
  };
  End ends[2];
  bool up = false;
  bool abandoned = false;  // by Connect(): its sink is never called
  SessionId session = 0;
  std::shared_ptr<Accepting> accepting;
};

class VirtualNetwork::Stream : public FrameStream {
 public:
  Stream(VirtualNetwork* network, ConnectionPtr connection, int side)
      : network_(network), connection_(std::move(connection)), side_(side) {}

  void Send(OutgoingFrame frame) override {
    Connection::End& end = connection_->ends[side_];
    auto loan = std::make_shared<Loan>();
    loan->frame = std::move(frame);
    loan->hash = HashOf(loan->frame.payload);
    if (end.closed || end.finished) return network_->GiveBack(end.process, std::move(loan));
    (loan->frame.urgent ? end.urgent : end.normal).push_back(loan);
    network_->Pump(connection_, side_);
  }

  void Finish() override {
    connection_->ends[side_].finished = true;
    network_->Pump(connection_, side_);
  }

  void Cancel(absl::Status reason) override {
    if (reason.ok()) reason = absl::CancelledError("no reason given");
    Connection::End& end = connection_->ends[side_];
    if (end.closed) return;
    Connection::End& peer = connection_->ends[1 - side_];
    const std::string& here = peer.peer_name;
    const absl::Status told =
        side_ == kAccepted
            ? absl::Status(reason.code(), absl::StrCat(here, ": ", reason.message()))
            : absl::UnavailableError(absl::StrCat(here, ": lost, or cancelled there"));
    const absl::Status own =
        absl::CancelledError(absl::StrCat(end.peer_name, ": cancelled here: ", reason.message()));
    network_->Send(end.process, peer.process,
                   [network = network_, connection = connection_, side = 1 - side_, told] {
                     network->Close(connection, side, told);
                   });
    network_->Close(connection_, side_, own);
  }

 private:
  VirtualNetwork* const network_;
  const ConnectionPtr connection_;
  const int side_;
};

class VirtualNetwork::Listener : public StreamListener {
 public:
  Listener(VirtualNetwork* network, std::shared_ptr<Accepting> accepting)
      : network_(network), accepting_(std::move(accepting)) {}

  ~Listener() override {
    accepting_->closing = true;
    const auto found = network_->listening_.find(accepting_->address);
    if (found != network_->listening_.end() && found->second == accepting_) {
      network_->listening_.erase(found);
    }
    const auto streams = accepting_->streams;
    for (const auto& weak : streams) {
      if (auto stream = weak.lock()) stream->Cancel(absl::UnavailableError("the listener closed"));
    }
    while (accepting_->open > 0) {
      network_->world_->Wait(accepting_.get(), absl::InfiniteDuration());
    }
  }

  std::string address() const override { return accepting_->address; }

 private:
  VirtualNetwork* const network_;
  const std::shared_ptr<Accepting> accepting_;
};

class VirtualNetwork::Link : public StreamLink {
 public:
  Link(VirtualNetwork* network, int process) : network_(network), process_(process) {}

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    std::string bound = address;
    const size_t colon = address.rfind(':');
    if (address.substr(colon + 1) == "0") {
      bound = absl::StrCat(address.substr(0, colon), ":", network_->next_port_++);
    }
    if (network_->dead(process_)) return absl::UnavailableError("the process is dead");
    if (network_->listening_.count(bound) > 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen at ", bound, ": taken"));
    }
    auto accepting = std::make_shared<Accepting>();
    accepting->address = bound;
    accepting->process = process_;
    accepting->acceptor = std::move(acceptor);
    network_->listening_[bound] = accepting;
    network_->world_->WakeQuietly(&network_->listening_);
    return std::make_unique<Listener>(network_, std::move(accepting));
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    const absl::Status late = absl::DeadlineExceededError(
        absl::StrCat("no stream to ", address, ": nobody accepted it before the deadline"));
    VirtualWorld* const world = network_->world_;
    // Whoever asks for the time may have to let others run, so time first.
    for (;;) {
      const bool passed = deadline.passed();
      if (network_->listening_.count(address) > 0) break;
      if (network_->dead(process_)) return absl::UnavailableError(address + ": no network");
      if (passed) return late;
      world->Wait(&network_->listening_, deadline.time().since_origin());
    }
    const std::shared_ptr<Accepting> accepting = network_->listening_[address];
    auto connection = std::make_shared<Connection>();
    connection->accepting = accepting;
    connection->ends[kOpened].process = process_;
    connection->ends[kOpened].peer_name = address;
    connection->ends[kOpened].sink = std::move(sink);
    connection->ends[kAccepted].process = accepting->process;
    connection->ends[kAccepted].peer_name = absl::StrCat("a peer of ", address);
    connection->session = network_->Begin(
        SessionKind::kStream, process_, accepting->process,
        [network = network_, weak = std::weak_ptr<Connection>(connection), process = process_](
            int who, bool silent) {
          const ConnectionPtr lost = weak.lock();
          if (lost == nullptr) return;
          const int side = who == process ? kOpened : kAccepted;
          absl::Status status =
              absl::UnavailableError(absl::StrCat(lost->ends[side].peer_name, ": connection lost"));
          if (silent) status = Suspicion(status, network->silence_.patience);
          network->Close(lost, side, std::move(status));
        });
    network_->connections_.emplace(connection->session, connection);
    network_->Send(process_, accepting->process, [network = network_, connection, accepting] {
      network->Accept(connection, accepting);
    });
    Connection::End& end = connection->ends[kOpened];
    for (;;) {
      const bool passed = deadline.passed();
      if (connection->up || end.closed || passed) break;
      world->Wait(connection.get(), deadline.time().since_origin());
    }
    if (!connection->up) {
      connection->abandoned = true;
      end.sink.reset();
      if (end.closed) return *end.closed;
      network_->Close(connection, kOpened, late);
      network_->Send(process_, accepting->process, [network = network_, connection] {
        network->Close(connection, kAccepted, absl::UnavailableError("the peer gave up"));
      });
      return late;
    }
    return std::make_shared<Stream>(network_, connection, kOpened);
  }

 private:
  VirtualNetwork* const network_;
  const int process_;
};

std::shared_ptr<StreamLink> VirtualNetwork::LinkOf(int process) {
  return std::make_shared<Link>(this, process);
}

void VirtualNetwork::Accept(const ConnectionPtr& connection,
                            const std::shared_ptr<Accepting>& accepting) {
  Connection::End& end = connection->ends[kAccepted];
  const int opener = connection->ends[kOpened].process;
  const auto refuse = [&](absl::Status why) {
    Send(end.process, opener, [this, connection, why] { Close(connection, kOpened, why); });
  };
  if (world_->verbose()) world_->Note(absl::StrCat("a stream comes from ", world_->name(opener)));
  if (end.closed) return;
  if (accepting->closing) return refuse(absl::UnavailableError("the listener closed"));
  ++accepting->open;
  auto stream = std::make_shared<Stream>(this, connection, kAccepted);
  accepting->streams.push_back(stream);
  std::shared_ptr<FrameSink> sink = accepting->acceptor(stream);
  if (sink == nullptr) {
    end.told = true;
    if (!end.closed) {
      end.closed = absl::UnavailableError("refused");
      refuse(absl::UnavailableError("the stream was refused"));
    }
    --accepting->open;
    world_->WakeQuietly(accepting.get());
    return;
  }
  end.sink = std::move(sink);
  Send(end.process, opener, [this, connection] {
    if (connection->abandoned || connection->ends[kOpened].closed) return;
    connection->up = true;
    world_->WakeQuietly(connection.get());
    Deliver(connection, kOpened);
  });
  Deliver(connection, kAccepted);
}

void VirtualNetwork::GiveBack(int process, std::shared_ptr<Loan> loan) {
  // A server's answer to a PUSH may come to its place before the PUSH is given back: whoever
  // answers has read it.
  const bool may_change = loan->frame.header.kind() == proto::FrameHeader::PUSH;
  world_->After(world_->Chance(0.5)
                    ? absl::ZeroDuration()
                    : world_->DrawDuration(absl::ZeroDuration(), absl::Milliseconds(2)),
                process, [this, may_change, loan = std::move(loan)] {
                  if (!may_change && HashOf(loan->frame.payload) != loan->hash) {
                    wrong_.Update(absl::DataLossError(
                        absl::StrCat("memory changed while it was lent for a ",
                                     proto::FrameHeader::Kind_Name(loan->frame.header.kind()),
                                     " of bucket ", loan->frame.header.bucket())));
                  }
                  loan->frame.released.Run();
                });
}

Payload VirtualNetwork::CutUp(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  absl::Span<const char> rest(*owner);
  std::vector<absl::Span<const char>> parts;
  for (int cuts = static_cast<int>(world_->Draw(3)); cuts > 0 && rest.size() > 1; --cuts) {
    const size_t size = 1 + world_->Draw(std::min<uint64_t>(rest.size() - 1, 37));
    parts.push_back(rest.first(size));
    rest.remove_prefix(size);
  }
  if (!rest.empty()) parts.push_back(rest);
  return MakePayload(std::move(parts), std::move(owner));
}

// One frame at a time is on its way, so that a stream keeps its order, but for urgent ones.
void VirtualNetwork::Pump(const ConnectionPtr& connection, int from) {
  Connection::End& end = connection->ends[from];
  if (end.sending || end.closed) return;
  Connection::Arrived frame;
  auto& queue = end.urgent.empty() ? end.normal : end.urgent;
  if (queue.empty()) {
    if (!end.finished || end.finish_sent) return;
    end.finish_sent = true;
    frame.end = true;
  } else {
    std::shared_ptr<Loan> loan = std::move(queue.front());
    queue.pop_front();
    if (HashOf(loan->frame.payload) != loan->hash) {
      wrong_.Update(absl::DataLossError("memory changed before it was read"));
    }
    frame.header = loan->frame.header;
    frame.payload = CutUp(std::string(loan->frame.payload.data(), loan->frame.payload.size()));
    GiveBack(end.process, std::move(loan));
  }
  end.sending = true;
  const int to = 1 - from;
  Send(
      end.process, connection->ends[to].process,
      [this, connection, to] { Deliver(connection, to); },
      [this, connection, from, to, frame] {
        Connection::End& sender = connection->ends[from];
        sender.sending = false;
        if (!connection->ends[to].closed) connection->ends[to].arrived.push_back(frame);
        if (!frame.end) return Pump(connection, from);
        // The accepting end is through once its own end has reached the host of its peer.
        sender.end_received = true;
        MaybeEnd(connection, from);
      });
}

// On a thread of the process that hears. A sink may wait for a mutex meanwhile.
void VirtualNetwork::Deliver(const ConnectionPtr& connection, int to) {
  Connection::End& end = connection->ends[to];
  if (end.delivering || end.told || end.sink == nullptr) return;
  if (to == kOpened && !connection->up) return;
  end.delivering = true;
  while (!end.closed && !end.arrived.empty()) {
    Connection::Arrived frame = std::move(end.arrived.front());
    end.arrived.pop_front();
    if (!frame.end) {
      end.sink->OnFrame(frame.header, std::move(frame.payload));
      continue;
    }
    end.heard_end = true;
    if (to == kAccepted) end.sink->OnPeerFinished();
    MaybeEnd(connection, to);
  }
  end.delivering = false;
  if (!end.closed || end.told) return;
  end.told = true;
  const std::shared_ptr<FrameSink> sink = std::move(end.sink);
  sink->OnClosed(*end.closed);
  if (to != kAccepted) return;
  --connection->accepting->open;
  world_->WakeQuietly(connection->accepting.get());
}

void VirtualNetwork::MaybeEnd(const ConnectionPtr& connection, int side) {
  const Connection::End& end = connection->ends[side];
  if (end.heard_end && end.end_received) Close(connection, side, absl::OkStatus());
}

void VirtualNetwork::Close(const ConnectionPtr& connection, int side, absl::Status status) {
  Connection::End& end = connection->ends[side];
  if (end.closed) return;
  end.closed = std::move(status);
  if (world_->verbose()) {
    world_->Note(absl::StrCat(world_->name(end.process), " - ",
                              world_->name(connection->ends[1 - side].process),
                              " closes: ", end.closed->ToString()));
  }
  for (auto* queue : {&end.urgent, &end.normal}) {
    for (auto& loan : *queue) GiveBack(end.process, std::move(loan));
    queue->clear();
  }
  end.arrived.clear();
  world_->WakeQuietly(connection.get());
  if (connection->ends[1 - side].closed) {
    End(connection->session);
    connections_.erase(connection->session);
  }
  world_->After(absl::ZeroDuration(), end.process,
                [this, connection, side] { Deliver(connection, side); });
}

absl::Duration VirtualNetwork::Latency() {
  absl::Duration time = world_->DrawDuration(absl::Microseconds(10), absl::Microseconds(200));
  if (world_->Draw(16) == 0)
    time += world_->DrawDuration(absl::ZeroDuration(), absl::Milliseconds(20));
  if (world_->elapsed() < slow_until_) time += world_->DrawDuration(absl::ZeroDuration(), slow_);
  return time;
}

void VirtualNetwork::Slow(absl::Duration most, absl::Duration time) {
  slow_ = most;
  slow_until_ = world_->elapsed() + time;
}

void VirtualNetwork::Send(int from, int to, std::function<void()> arrive,
                          std::function<void()> receive) {
  if (from != to && dead(from)) return;
  world_->Outside(Latency(), [this, from, to, arrive = std::move(arrive),
                              receive = std::move(receive)]() mutable {
    if (from != to && dead(to)) return;
    if (cut(from, to)) {
      held_up_[Pair(from, to)].push_back(
          [this, to, arrive = std::move(arrive), receive = std::move(receive)] {
            if (receive) receive();
            world_->After(Latency(), to, arrive);
          });
      return;
    }
    if (receive) receive();
    world_->After(absl::ZeroDuration(), to, std::move(arrive));
  });
}

void VirtualNetwork::Send(const std::shared_ptr<Lane>& lane, int from, int to,
                          std::function<void()> arrive) {
  Send(from, to, [this, lane, number = lane->sent++, arrive = std::move(arrive)] {
    lane->arrived.emplace(number, arrive);
    Hear(lane);
  });
}

void VirtualNetwork::Hear(const std::shared_ptr<Lane>& lane) {
  if (lane->hearing) return;
  lane->hearing = true;
  while (!lane->arrived.empty() && lane->arrived.begin()->first == lane->heard) {
    const std::function<void()> arrive = std::move(lane->arrived.begin()->second);
    lane->arrived.erase(lane->arrived.begin());
    ++lane->heard;
    arrive();
  }
  lane->hearing = false;
}

VirtualNetwork::SessionId VirtualNetwork::Begin(SessionKind kind, int a, int b,
                                                std::function<void(int, bool)> lost) {
  const SessionId id = ++numbers_;
  sessions_.emplace(id, Session{kind, a, b, std::move(lost)});
  // Whoever connects to the dead, or is dead, hears so.
  if (a != b && (dead(a) || dead(b))) {
    world_->Outside(Latency(), [this, id, a] {
      const auto found = sessions_.find(id);
      if (found == sessions_.end()) return;
      const auto tell = found->second.lost;
      tell(a, /*silent=*/false);
    });
  }
  return id;
}

// Those of `a` with `b`, or with all others if `b` is negative; those of one kind that have been
// silent, or all.
void VirtualNetwork::LoseSessions(int a, int b, bool tell_b, absl::optional<SessionKind> silent) {
  std::vector<std::pair<SessionId, int>> told;
  for (const auto& [id, session] : sessions_) {
    const bool forward = session.a == a && (b < 0 || session.b == b);
    const bool backward = session.b == a && (b < 0 || session.a == b);
    if ((!forward && !backward) || session.a == session.b) continue;
    if (silent && session.kind != *silent) continue;
    const int other = forward ? session.b : session.a;
    told.emplace_back(id, a);
    if (tell_b && !cut(a, other)) told.emplace_back(id, other);
  }
  for (const auto& [id, process] : told) {
    world_->Outside(Latency(), [this, id = id, process = process, silent = silent.has_value()] {
      const auto found = sessions_.find(id);
      if (found == sessions_.end()) return;
      const auto tell = found->second.lost;  // which may end the session
      tell(process, silent);
    });
  }
}

void VirtualNetwork::Kill(int process) {
  dead_.insert(process);
  for (auto each = listening_.begin(); each != listening_.end();) {
    each = each->second->process == process ? listening_.erase(each) : std::next(each);
  }
  LoseSessions(process, -1, /*tell_b=*/true, absl::nullopt);
}

// Its host goes on to acknowledge what is sent to it.
void VirtualNetwork::NoteStopped(int process) {
  const int64_t number = ++stops_[process];
  world_->Outside(kKeepalive, [this, process, number] {
    if (!world_->stopped(process) || stops_[process] != number) return;
    LoseSessions(process, -1, /*tell_b=*/true, absl::nullopt);
  });
}

void VirtualNetwork::Cut(int a, int b) {
  cuts_.insert(Pair(a, b));
  const int64_t number = cut_number_[Pair(a, b)] = ++cut_count_;
  const auto lose = [this, a, b, number](SessionKind kind) {
    if (!cut(a, b) || cut_number_[Pair(a, b)] != number) return;
    LoseSessions(a, b, /*tell_b=*/false, kind);
    LoseSessions(b, a, /*tell_b=*/false, kind);
  };
  world_->Outside(silence_.limit + 2 * silence_.interval, [lose] { lose(SessionKind::kStream); });
  world_->Outside(kKeepalive, [lose] { lose(SessionKind::kCalls); });
}

void VirtualNetwork::Heal(int a, int b) {
  cuts_.erase(Pair(a, b));
  for (auto& send : std::exchange(held_up_[Pair(a, b)], {})) send();
}

std::pair<int, int> VirtualNetwork::BreakStream() {
  std::vector<ConnectionPtr> open;
  for (const auto& [number, weak] : connections_) {
    ConnectionPtr connection = weak.lock();
    if (connection != nullptr && connection->up && !connection->ends[0].closed &&
        !connection->ends[1].closed) {
      open.push_back(std::move(connection));
    }
  }
  if (open.empty()) return {-1, -1};
  const ConnectionPtr connection = open[world_->Draw(open.size())];
  for (const int side : {kOpened, kAccepted}) {
    world_->Outside(Latency(), [this, connection, side] {
      Close(connection, side,
            absl::UnavailableError(
                absl::StrCat(connection->ends[side].peer_name, ": connection reset")));
    });
  }
  return {connection->ends[0].process, connection->ends[1].process};
}

}  // namespace gradsync
