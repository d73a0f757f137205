#include "core/links/tcp_stream.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_port.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/links/link_driver.h"
#include "core/links/silence_watch.h"
#include "core/links/tcp_frame_stream.h"
#include "core/links/tcp_reactor.h"
#include "core/links/tcp_records.h"
#include "core/links/tcp_transport.h"

namespace gradsync {
namespace {

// Between two attempts to connect.
constexpr absl::Duration kFirstPause = absl::Milliseconds(10);
constexpr absl::Duration kLongestPause = absl::Milliseconds(250);

// Connections on which no stream has been opened yet, at most.
constexpr int kBacklog = 1024;

// A descriptor that is closed at the end of a scope, unless it is taken.
class Descriptor {
 public:
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.Take()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Descriptor() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int get() const { return descriptor_; }
  int Take() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

struct Address {
  sockaddr_storage bytes = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int port() const {
    return ntohs(bytes.ss_family == AF_INET6
                     ? reinterpret_cast<const sockaddr_in6&>(bytes).sin6_port
                     : reinterpret_cast<const sockaddr_in&>(bytes).sin_port);
  }
  void set_port(int port) {
    if (bytes.ss_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6&>(bytes).sin6_port = htons(static_cast<uint16_t>(port));
    } else {
      reinterpret_cast<sockaddr_in&>(bytes).sin_port = htons(static_cast<uint16_t>(port));
    }
  }
};

bool IsWildcard(const HostPort& place) { return place.host == "0.0.0.0" || place.host == "::"; }

// All that the name leads to. Errors: UNAVAILABLE, with the resolver's words.
absl::StatusOr<std::vector<Address>> Resolve(const HostPort& place, bool to_listen) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (to_listen ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  const int failed =
      getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (failed != 0) return absl::UnavailableError(gai_strerror(failed));
  std::vector<Address> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Address address;
    address.size = std::min<socklen_t>(each->ai_addrlen, sizeof(address.bytes));
    std::memcpy(&address.bytes, each->ai_addr, address.size);
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

// Where to listen; one of them is enough for a wildcard, which is all addresses of both versions.
absl::StatusOr<std::vector<Address>> PlacesOf(const HostPort& place) {
  if (!IsWildcard(place)) return Resolve(place, /*to_listen=*/true);
  GS_ASSIGN_OR_RETURN(std::vector<Address> places, Resolve({"::", place.port}, true));
  GS_ASSIGN_OR_RETURN(const std::vector<Address> older, Resolve({"0.0.0.0", place.port}, true));
  places.insert(places.end(), older.begin(), older.end());
  return places;
}

// "10.0.0.7:4000", "[fe80::1]:4000".
std::string PeerOf(int descriptor) {
  Address address;
  address.size = sizeof(address.bytes);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address.bytes), &address.size) != 0) {
    return "a peer that is gone";
  }
  char text[INET6_ADDRSTRLEN] = "";
  if (address.bytes.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address.bytes);
    if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
      inet_ntop(AF_INET, &six.sin6_addr.s6_addr[12], text, sizeof(text));
    } else {
      inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof(text));
    }
  } else {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address.bytes).sin_addr, text,
              sizeof(text));
  }
  return FormatHostPort(text, address.port());
}

void SendAtOnce(int descriptor) {
  const int on = 1;
  setsockopt(descriptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

// Waits for `events`. False when the deadline has passed.
bool Await(int descriptor, short events, Deadline deadline) {
  pollfd ready = {descriptor, events, 0};
  for (;;) {
    const int count = poll(&ready, 1, deadline.PollTimeout());
    if (count > 0) return true;
    if (count == 0 && deadline.passed()) return false;
  }
}

// Errors: UNAVAILABLE with the kernel's words, DEADLINE_EXCEEDED.
absl::StatusOr<Descriptor> ConnectTo(const Address& address, Deadline deadline) {
  Descriptor descriptor(
      socket(address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (descriptor.get() < 0) return absl::UnavailableError(std::strerror(errno));
  if (connect(descriptor.get(), address.get(), address.size) != 0) {
    if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
    if (!Await(descriptor.get(), POLLOUT, deadline)) {
      return absl::DeadlineExceededError("no answer from its host");
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(descriptor.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return absl::UnavailableError(std::strerror(error));
  }
  SendAtOnce(descriptor.get());
  return descriptor;
}

// The opening of a stream by the side that connects.

// A connection whose calls wait, each until `deadline`.
struct Connection {
  Descriptor descriptor;
  std::unique_ptr<TcpTransport> transport;
  Deadline deadline = Deadline::Never();

  // After a call that has failed. OK when it may be made again.
  absl::Status AwaitAfter(short events) {
    const int error = errno;
    if (error == EINTR) return absl::OkStatus();
    if (error != EAGAIN) return absl::UnavailableError(transport->Why(error));
    return Await(descriptor.get(), transport->WaitsFor(events), deadline)
               ? absl::OkStatus()
               : absl::DeadlineExceededError("");
  }

  absl::Status WriteAll(absl::string_view bytes) {
    while (!bytes.empty()) {
      const iovec piece = {const_cast<char*>(bytes.data()), bytes.size()};
      const ssize_t written = transport->Send(&piece, 1);
      if (written < 0) {
        GS_RETURN_IF_ERROR(AwaitAfter(POLLOUT));
      } else {
        bytes.remove_prefix(static_cast<size_t>(written));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadExactly(char* bytes, size_t count) {
    while (count > 0) {
      iovec place = {bytes, count};
      const ssize_t received = transport->Receive(&place, 1);
      if (received == 0) return absl::UnavailableError("the connection was closed");
      if (received < 0) {
        GS_RETURN_IF_ERROR(AwaitAfter(POLLIN));
      } else {
        bytes += received;
        count -= static_cast<size_t>(received);
      }
    }
    return absl::OkStatus();
  }
};

// Says that TLS follows, which a server needs to tell it from gRPC's.
absl::Status BeginTls(TlsContext& tls, const std::string& host, Connection* connection) {
  std::string bytes;
  AppendRecord(TcpRecord::kTls, "", &bytes);
  GS_RETURN_IF_ERROR(connection->WriteAll(bytes));
  connection->transport = tls.Connecting(connection->descriptor.get(), host);
  return absl::OkStatus();
}

struct Answer {
  TcpRecord::Type type;
  std::string header;
};

absl::StatusOr<Answer> ReadAnswer(Connection* connection) {
  char prefix[TcpRecord::kPrefixBytes];
  GS_RETURN_IF_ERROR(connection->ReadExactly(prefix, sizeof(prefix)));
  absl::StatusOr<TcpRecord> record = ReadPrefix(prefix);
  if (!record.ok()) return absl::FailedPreconditionError(record.status().message());
  constexpr size_t kMostBytes = 16 << 10;
  if (record->payload_bytes > 0 || record->header_bytes > kMostBytes) {
    return absl::FailedPreconditionError("an answer that is too long");
  }
  Answer answer = {record->type, std::string(record->header_bytes, '\0')};
  GS_RETURN_IF_ERROR(connection->ReadExactly(&answer.header[0], answer.header.size()));
  return answer;
}

// Errors: those of the peer, marked by `refused`; UNAVAILABLE and DEADLINE_EXCEEDED where there was
// no answer.
absl::Status OpenStream(Connection* connection, const StreamProof& proof, const std::string& secret,
                        bool* refused) {
  TcpOpening opening;
  opening.has_secret = !secret.empty();
  opening.proof = proof;
  std::string bytes;
  AppendRecord(TcpRecord::kOpening, opening.Encode(), &bytes);
  GS_RETURN_IF_ERROR(connection->WriteAll(bytes));
  GS_ASSIGN_OR_RETURN(Answer answer, ReadAnswer(connection));
  if (answer.type == TcpRecord::kChallenge && !secret.empty()) {
    bytes.clear();
    AppendRecord(TcpRecord::kProof, ProofMaker(secret, answer.header).Next(), &bytes);
    GS_RETURN_IF_ERROR(connection->WriteAll(bytes));
    GS_ASSIGN_OR_RETURN(answer, ReadAnswer(connection));
  }
  if (answer.type == TcpRecord::kAccepted) return absl::OkStatus();
  *refused = true;
  proto::FrameHeader end;
  if (answer.type != TcpRecord::kEnd || !end.mutable_error()->ParseFromString(answer.header)) {
    return absl::FailedPreconditionError("an answer that is none to an opening");
  }
  return FailureIn(end);
}

// The reactors that connections are spread over.
class Threads {
 public:
  explicit Threads(int count) : reactors_(static_cast<size_t>(std::max(count, 1))) {}

  // Those of the process.
  static std::shared_ptr<Threads> Shared(int count) {
    static auto& mutex = *new Mutex();
    static auto& all = *new std::map<int, std::weak_ptr<Threads>>();
    MutexLock lock(&mutex);
    std::shared_ptr<Threads> threads = all[count].lock();
    if (threads == nullptr) all[count] = threads = std::make_shared<Threads>(count);
    return threads;
  }

  // The thread of the connection with that number.
  std::shared_ptr<TcpReactor> Of(int connection) {
    MutexLock lock(&mutex_);
    auto& reactor = reactors_[static_cast<size_t>(connection) % reactors_.size()];
    if (reactor == nullptr) reactor = std::make_shared<TcpReactor>();
    return reactor;
  }

  void AddTo(Drivables* drivables) {
    MutexLock lock(&mutex_);
    for (const auto& reactor : reactors_) {
      if (reactor != nullptr) drivables->push_back(reactor);
    }
  }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<TcpReactor>> reactors_ ABSL_GUARDED_BY(mutex_);
};

// A socket that listens, as the reactor sees it.
class Accepting : public TcpReactor::Handler {
 public:
  Accepting(int descriptor, std::shared_ptr<TcpReactor> reactor, std::shared_ptr<Threads> threads,
            std::shared_ptr<ReceiveMemory> memory, const TcpPatience& patience,
            std::shared_ptr<TcpAcceptance> acceptance)
      : descriptor_(descriptor),
        reactor_(std::move(reactor)),
        threads_(std::move(threads)),
        memory_(std::move(memory)),
        patience_(patience),
        acceptance_(std::move(acceptance)) {}

  void CloseAndWait(const std::shared_ptr<Accepting>& self) {
    closing_ = true;
    reactor_->Attend(self);
    closed_.WaitForNotification();
  }

  bool OnReady(bool /*readable*/, bool /*writable*/, bool /*ends*/) override {
    for (int i = 0; i < 64; ++i) {
      const int accepted =
          accept4(descriptor_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (accepted < 0) {
        // Without descriptors it looks again at the next tick.
        if (errno == EINTR || errno == ECONNABORTED) continue;
        return false;
      }
      SendAtOnce(accepted);
      auto stream = std::make_shared<TcpFrameStream>(
          accepted, PeerOf(accepted), threads_->Of(accepted_++), memory_, patience_, acceptance_);
      if (acceptance_->registry.Add(stream)) stream->Start();
    }
    return true;
  }

  void OnAttention() override {
    if (!closing_ || closed_.HasBeenNotified()) return;
    reactor_->Remove(descriptor_.get());
    descriptor_ = Descriptor();
    closed_.Notify();
  }

  void OnTick(MonotonicTime /*now*/, absl::Duration /*late*/) override {
    if (!closed_.HasBeenNotified()) OnReady(true, false, false);
  }

 private:
  Descriptor descriptor_;
  const std::shared_ptr<TcpReactor> reactor_;
  const std::shared_ptr<Threads> threads_;
  const std::shared_ptr<ReceiveMemory> memory_;
  const TcpPatience patience_;
  const std::shared_ptr<TcpAcceptance> acceptance_;
  int accepted_ = 0;
  std::atomic<bool> closing_{false};
  Notification closed_;
};

class TcpListener : public StreamListener {
 public:
  TcpListener(std::string address, std::shared_ptr<TcpAcceptance> acceptance,
              std::vector<std::shared_ptr<Accepting>> accepting)
      : address_(std::move(address)),
        acceptance_(std::move(acceptance)),
        accepting_(std::move(accepting)) {}

  ~TcpListener() override {
    for (const auto& each : accepting_) each->CloseAndWait(each);
    acceptance_->registry.CancelAllAndWait(absl::UnavailableError("the listener closed"));
    // Streams outlive the listener, and what it holds may hold them.
    acceptance_->acceptor = nullptr;
  }

  std::string address() const override { return address_; }

 private:
  const std::string address_;
  const std::shared_ptr<TcpAcceptance> acceptance_;
  const std::vector<std::shared_ptr<Accepting>> accepting_;
};

// A socket that listens at the address, and then its port. Errors: UNAVAILABLE.
absl::StatusOr<Descriptor> ListenAt(Address* address) {
  Descriptor descriptor(
      socket(address->bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (descriptor.get() < 0) return absl::UnavailableError(std::strerror(errno));
  const int on = 1;
  setsockopt(descriptor.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address->bytes.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address->bytes);
    // "::" and IPv4 written as IPv6 take what comes by IPv4.
    const bool both =
        IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr) || IN6_IS_ADDR_V4MAPPED(&six.sin6_addr);
    const int only = both ? 0 : 1;
    setsockopt(descriptor.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
  }
  if (bind(descriptor.get(), address->get(), address->size) != 0 ||
      listen(descriptor.get(), kBacklog) != 0 ||
      getsockname(descriptor.get(), reinterpret_cast<sockaddr*>(&address->bytes), &address->size) !=
          0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return descriptor;
}

class TcpLink : public StreamLink {
 public:
  explicit TcpLink(TcpLinkOptions options)
      : options_(std::move(options)),
        threads_(Threads::Shared(options_.threads)),
        memory_(std::make_shared<ReceiveMemory>()) {
    if (options_.credentials.tls != nullptr) tls_ = NewTlsContext(*options_.credentials.tls);
    if (options_.spin > absl::ZeroDuration() && HostCores() > 1) {
      driver_ = std::make_shared<LinkDriver>(
          options_.spin, [threads = threads_](Drivables* drivables) { threads->AddTo(drivables); });
    }
    patience_.open_within = options_.opening_timeout;
    patience_.ask_after = options_.stopped_timeout / 2;
    patience_.answer_within = options_.stopped_timeout / 2;
    if (options_.failure_timeout == absl::InfiniteDuration()) return;
    watch_ = std::make_shared<SilenceWatch>(options_.failure_timeout);
    patience_.ask_after = 2 * SilenceFor(options_.failure_timeout).interval;
    patience_.answer_within = std::max(options_.stopped_timeout, 4 * options_.failure_timeout);
  }

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    const absl::StatusOr<HostPort> place = ParseHostPort(address);
    if (!place.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen at \"", address, "\": expected host:port"));
    }
    GS_RETURN_IF_ERROR(CheckListener(options_.credentials, address));
    GS_RETURN_IF_ERROR(tls_.status());
    absl::StatusOr<std::vector<Address>> resolved = PlacesOf(*place);
    absl::Status why = resolved.status();
    std::vector<Descriptor> listening;
    int port = place->port;
    if (resolved.ok()) {
      for (Address& each : *resolved) {
        each.set_port(port);
        absl::StatusOr<Descriptor> descriptor = ListenAt(&each);
        if (!descriptor.ok()) {
          why = descriptor.status();
          continue;
        }
        port = each.port();
        listening.push_back(*std::move(descriptor));
        if (IsWildcard(*place)) break;
      }
    }
    if (listening.empty()) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen at ", address, ": ", why.message()));
    }
    auto acceptance =
        std::make_shared<TcpAcceptance>(std::move(acceptor), options_.credentials.secret, *tls_,
                                        options_.others, options_.max_payload_bytes, watch_);
    std::vector<std::shared_ptr<Accepting>> accepting;
    for (Descriptor& each : listening) {
      const int descriptor = each.Take();
      auto reactor = threads_->Of(0);
      accepting.push_back(std::make_shared<Accepting>(descriptor, reactor, threads_, memory_,
                                                      patience_, acceptance));
      reactor->Add(descriptor, accepting.back());
    }
    return std::make_unique<TcpListener>(FormatHostPort(place->host, port), std::move(acceptance),
                                         std::move(accepting));
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    GS_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(address));
    GS_RETURN_IF_ERROR(tls_.status());
    std::string why;
    for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
      absl::StatusOr<std::vector<Address>> resolved = Resolve(place, /*to_listen=*/false);
      if (!resolved.ok()) {
        why = std::string(resolved.status().message());
        resolved = std::vector<Address>();
      }
      for (const Address& each : *resolved) {
        absl::StatusOr<Descriptor> descriptor = ConnectTo(each, deadline);
        bool refused = false;
        absl::Status opened = descriptor.status();
        Connection made;
        if (opened.ok()) {
          made.deadline = deadline;
          made.transport = NewPlainTransport(descriptor->get());
          made.descriptor = *std::move(descriptor);
          if (*tls_ != nullptr) opened = BeginTls(**tls_, place.host, &made);
          if (opened.ok()) {
            opened = OpenStream(&made, options_.proof, options_.credentials.secret, &refused);
          }
        }
        if (opened.ok()) return Begin(std::move(made), address, connection, std::move(sink));
        if (refused || absl::IsFailedPrecondition(opened)) return Annotate(address, opened);
        if (!opened.message().empty()) why = std::string(opened.message());
      }
      const Deadline next = std::min(deadline, Deadline::In(pause));
      if (deadline.passed()) break;
      poll(nullptr, 0, next.PollTimeout());
      if (deadline.passed()) break;
    }
    return absl::DeadlineExceededError(absl::StrCat("no stream to ", address,
                                                    ": nobody accepted it before the deadline",
                                                    why.empty() ? "" : ": ", why));
  }

  std::shared_ptr<LinkDriver> driver() override { return driver_; }

 private:
  std::shared_ptr<FrameStream> Begin(Connection made, const std::string& address, int connection,
                                     std::shared_ptr<FrameSink> sink) {
    const std::string peer = PeerOf(made.descriptor.get());
    auto stream = std::make_shared<TcpFrameStream>(
        made.descriptor.Take(), std::move(made.transport), address, threads_->Of(connection),
        memory_, patience_, std::move(sink));
    if (watch_ != nullptr) {
      watch_->Add(absl::StrCat(peer[0] == '[' ? "ipv6:" : "ipv4:", peer), stream);
    }
    stream->Start();
    return stream;
  }

  const TcpLinkOptions options_;
  absl::StatusOr<std::shared_ptr<TlsContext>> tls_ = std::shared_ptr<TlsContext>();  // or null
  const std::shared_ptr<Threads> threads_;
  const std::shared_ptr<ReceiveMemory> memory_;
  std::shared_ptr<LinkDriver> driver_;  // or null
  TcpPatience patience_;
  std::shared_ptr<SilenceWatch> watch_;  // null: of nobody
};

}  // namespace

std::shared_ptr<StreamLink> NewTcpLink(TcpLinkOptions options) {
  return std::make_shared<TcpLink>(std::move(options));
}

}  // namespace gradsync
