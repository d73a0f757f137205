#include "core/links/in_process_stream.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/links/link_driver.h"

namespace gradsync {
namespace {

// Runs `released` when the last reader has let go.
class Loan {
 public:
  explicit Loan(OutgoingFrame frame) : frame_(std::move(frame)) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() { frame_.released.Run(); }

  const OutgoingFrame& frame() const { return frame_; }

 private:
  OutgoingFrame frame_;
};

using LoanQueue = std::deque<std::shared_ptr<const Loan>>;

// What a listener and the accepted ends share; the listener may go first.
struct Acceptance {
  Acceptance(std::string address, StreamAcceptor acceptor)
      : address(std::move(address)), acceptor(std::move(acceptor)) {}

  const std::string address;
  const StreamAcceptor acceptor;
  Mutex mutex;
  CondVar changed;
  bool closing ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::weak_ptr<FrameStream>> streams ABSL_GUARDED_BY(mutex);
  int open ABSL_GUARDED_BY(mutex) = 0;
};

enum Side { kOpened = 0, kAccepted = 1 };

class InProcessStream;

// The ends of a link, where threads that wait deliver what comes to them.
class Deliveries : public Drivable {
 public:
  void Add(const std::shared_ptr<InProcessStream>& stream);

  // Whether a thread drives, which looks at all queues before it goes.
  bool driven() const { return driven_; }

  bool BeginDriving() override { return !driven_.exchange(true); }
  void EndDriving(bool idle) override;
  bool Poll() override;

 private:
  using Streams = absl::InlinedVector<std::shared_ptr<InProcessStream>, 4>;
  Streams Open();

  std::atomic<bool> driven_{false};
  Mutex mutex_;
  std::vector<std::weak_ptr<InProcessStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

// Both ends of a stream: one mutex, so that each sees the other's state.
struct Connection {
  // What is on its way to one end, and what that end did.
  struct End {
    LoanQueue urgent;
    LoanQueue normal;
    bool finished = false;
    absl::optional<absl::Status> closed;  // why it ends, once that is known
  };

  explicit Connection(const std::string& address)
      : peer_names{address, absl::StrCat("a peer of ", address)} {}

  const std::string peer_names[2];  // of each side's peer, for messages
  Mutex mutex;
  CondVar changed;
  End ends[2] ABSL_GUARDED_BY(mutex);
  bool up ABSL_GUARDED_BY(mutex) = false;         // accepted
  bool abandoned ABSL_GUARDED_BY(mutex) = false;  // Connect() gave up

  bool Idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return ends[0].urgent.empty() && ends[0].normal.empty() && ends[1].urgent.empty() &&
           ends[1].normal.empty();
  }

  // Ends both sides; a side that has ended keeps its first status.
  void Close(Side side, const absl::Status& own, const absl::Status& peers) {
    LoanQueue dropped;  // `released` must run without the mutex
    MutexLock lock(&mutex);
    for (Side each : {kOpened, kAccepted}) {
      End& end = ends[each];
      if (!end.closed) end.closed = each == side ? own : peers;
      for (LoanQueue* queue : {&end.urgent, &end.normal}) {
        std::move(queue->begin(), queue->end(), std::back_inserter(dropped));
        queue->clear();
      }
    }
    changed.SignalAll();
  }
};

class InProcessStream : public FrameStream {
 public:
  InProcessStream(std::shared_ptr<Connection> connection, Side side, StreamProof proof,
                  std::shared_ptr<Deliveries> deliveries)
      : connection_(std::move(connection)),
        side_(side),
        proof_(std::move(proof)),
        deliveries_(std::move(deliveries)) {}

  StreamProof proof() const override { return proof_; }

  void Send(OutgoingFrame frame) override {
    const bool urgent = frame.urgent;
    auto loan = std::make_shared<const Loan>(std::move(frame));
    MutexLock lock(&connection_->mutex);
    Connection::End& here = connection_->ends[side_];
    Connection::End& there = connection_->ends[Peer()];
    if (here.finished || here.closed || there.closed) return;
    (urgent ? there.urgent : there.normal).push_back(std::move(loan));
    if (!deliveries_->driven()) connection_->changed.SignalAll();
  }

  void Finish() override {
    MutexLock lock(&connection_->mutex);
    connection_->ends[side_].finished = true;
    connection_->changed.SignalAll();
  }

  void Cancel(absl::Status reason) override {
    if (reason.ok()) reason = absl::CancelledError("no reason given");
    const std::string& peer = connection_->peer_names[side_];
    const std::string& here = connection_->peer_names[Peer()];
    connection_->Close(
        side_, absl::CancelledError(absl::StrCat(peer, ": cancelled here: ", reason.message())),
        side_ == kAccepted
            ? absl::Status(reason.code(), absl::StrCat(here, ": ", reason.message()))
            : absl::UnavailableError(absl::StrCat(here, ": lost, or cancelled there")));
  }

  // Hears until the stream ends. Runs on the end's own thread.
  void Deliver(FrameSink& sink, const InProcessLinkOptions& options, uint64_t seed) {
    std::mt19937_64 random(seed);
    {
      MutexLock turn(&turn_);
      sink_ = &sink;
    }
    for (;;) {
      Pause(options.max_delay, random);
      AwaitNext();
      MutexLock turn(&turn_);
      bool ended = false;
      if (!DeliverNext(&ended, options.split_payloads, &random) && ended) break;
    }
    absl::Status status;
    {
      MutexLock lock(&connection_->mutex);
      status = *connection_->ends[side_].closed;
    }
    {
      MutexLock turn(&turn_);
      sink_ = nullptr;
    }
    sink.OnClosed(std::move(status));
  }

  // Delivers frames that are there, on a thread that drives. Returns whether there was one.
  bool Poll() {
    {
      MutexLock lock(&connection_->mutex);
      const Connection::End& end = connection_->ends[side_];
      if (end.urgent.empty() && end.normal.empty()) return false;
    }
    if (!turn_.TryLock()) return false;
    bool ended = false;
    const bool delivered =
        sink_ != nullptr && DeliverNext(&ended, /*split=*/false, /*random=*/nullptr);
    turn_.Unlock();
    return delivered;
  }

  // Wakes the end's own thread, if there is something for it.
  void Wake() {
    MutexLock lock(&connection_->mutex);
    const Connection::End& end = connection_->ends[side_];
    if (!end.urgent.empty() || !end.normal.empty()) connection_->changed.SignalAll();
  }

 private:
  Side Peer() const { return side_ == kOpened ? kAccepted : kOpened; }

  // Returns when DeliverNext() may have something to do.
  void AwaitNext() {
    MutexLock lock(&connection_->mutex);
    const Connection::End& end = connection_->ends[side_];
    const bool& peer_finished = connection_->ends[Peer()].finished;
    while (!end.closed && end.urgent.empty() && end.normal.empty() &&
           !(end.finished && peer_finished && connection_->Idle()) &&
           !(side_ == kAccepted && peer_finished && !told_peer_finished_)) {
      connection_->changed.Wait(&connection_->mutex);
    }
  }

  // Calls the sink with the next frame, or says that the peer has finished, which is said once, at the
  // accepting end. False where there was nothing to say; `ended`: the stream has ended.
  bool DeliverNext(bool* ended, bool split, std::mt19937_64* random)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(turn_) {
    std::shared_ptr<const Loan> loan;
    {
      MutexLock lock(&connection_->mutex);
      Connection::End& end = connection_->ends[side_];
      if (!end.closed) {
        LoanQueue& queue = end.urgent.empty() ? end.normal : end.urgent;
        if (!queue.empty()) {
          loan = std::move(queue.front());
          queue.pop_front();
          if (connection_->Idle()) connection_->changed.SignalAll();
        } else if (end.finished && connection_->ends[Peer()].finished && connection_->Idle()) {
          for (Connection::End& each : connection_->ends) each.closed = absl::OkStatus();
          connection_->changed.SignalAll();
        } else if (side_ != kAccepted || !connection_->ends[Peer()].finished ||
                   told_peer_finished_) {
          return false;
        } else {
          told_peer_finished_ = true;
        }
      }
      if (end.closed) {
        *ended = true;
        return false;
      }
    }
    if (loan == nullptr) {
      sink_->OnPeerFinished();
      return true;
    }
    Payload payload = MakePayload(Parts(loan->frame().payload, split, random), loan);
    const proto::FrameHeader header = loan->frame().header;
    loan.reset();
    sink_->OnFrame(header, std::move(payload));
    return true;
  }

  void Pause(absl::Duration max_delay, std::mt19937_64& random) {
    if (max_delay <= absl::ZeroDuration() || random() % 2 == 0) return;
    const Deadline until = Deadline::In(max_delay * (random() % 1024) / 1024);
    MutexLock lock(&connection_->mutex);
    while (!connection_->ends[side_].closed &&
           !connection_->changed.WaitWithDeadline(&connection_->mutex, until)) {
    }
  }

  static std::vector<absl::Span<const char>> Parts(absl::Span<const char> payload, bool split,
                                                   std::mt19937_64* random) {
    std::vector<absl::Span<const char>> parts;
    for (int cut = 0; split && cut < 5 && payload.size() > 1; ++cut) {
      // The first cut is within the first float, the others anywhere.
      const size_t most = cut == 0 ? std::min<size_t>(3, payload.size() - 1) : payload.size() - 1;
      const size_t bytes = std::min<size_t>(payload.size(), (1 + (*random)() % most) | 1);
      parts.push_back(payload.first(bytes));
      payload.remove_prefix(bytes);
    }
    if (!payload.empty()) parts.push_back(payload);
    return parts;
  }

  const std::shared_ptr<Connection> connection_;
  const Side side_;
  const StreamProof proof_;
  const std::shared_ptr<Deliveries> deliveries_;

  Mutex turn_;  // of the thread that delivers
  FrameSink* sink_ ABSL_GUARDED_BY(turn_) = nullptr;
  bool told_peer_finished_ ABSL_GUARDED_BY(connection_->mutex) = false;
};

void Deliveries::Add(const std::shared_ptr<InProcessStream>& stream) {
  MutexLock lock(&mutex_);
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const auto& each) { return each.expired(); }),
                 streams_.end());
  streams_.push_back(stream);
}

Deliveries::Streams Deliveries::Open() {
  Streams open;
  MutexLock lock(&mutex_);
  for (const auto& weak : streams_) {
    if (auto stream = weak.lock()) open.push_back(std::move(stream));
  }
  return open;
}

void Deliveries::EndDriving(bool /*idle*/) {
  driven_ = false;
  for (const auto& stream : Open()) stream->Wake();
}

bool Deliveries::Poll() {
  bool any = false;
  for (const auto& stream : Open()) any = stream->Poll() || any;
  return any;
}

class InProcessListener : public StreamListener {
 public:
  InProcessListener(std::shared_ptr<Acceptance> acceptance, absl::AnyInvocable<void() &&> unlisten)
      : acceptance_(std::move(acceptance)), unlisten_(std::move(unlisten)) {}

  ~InProcessListener() override {
    std::move(unlisten_)();
    std::vector<std::weak_ptr<FrameStream>> streams;
    {
      MutexLock lock(&acceptance_->mutex);
      acceptance_->closing = true;
      streams.swap(acceptance_->streams);
    }
    for (const auto& weak : streams) {
      if (auto stream = weak.lock()) stream->Cancel(absl::UnavailableError("the listener closed"));
    }
    MutexLock lock(&acceptance_->mutex);
    while (acceptance_->open > 0) acceptance_->changed.Wait(&acceptance_->mutex);
  }

  std::string address() const override { return acceptance_->address; }

 private:
  const std::shared_ptr<Acceptance> acceptance_;
  absl::AnyInvocable<void() &&> unlisten_;
};

class InProcessLink : public StreamLink, public std::enable_shared_from_this<InProcessLink> {
 public:
  const std::shared_ptr<Deliveries>& deliveries() const { return deliveries_; }

  explicit InProcessLink(InProcessLinkOptions options) : options_(std::move(options)) {}

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    const size_t colon = address.rfind(':');
    int port = -1;
    if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
        port < 0 || port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot listen at \"", address, "\": expected host:port"));
    }
    MutexLock lock(&mutex_);
    std::string bound = address;
    while (port == 0 && (bound == address || listening_.count(bound) > 0)) {
      bound = absl::StrCat(address.substr(0, colon), ":", next_port_++);
    }
    if (listening_.count(bound) > 0) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen at ", bound, ": the port is taken"));
    }
    auto acceptance = std::make_shared<Acceptance>(bound, std::move(acceptor));
    listening_[bound] = acceptance;
    changed_.SignalAll();
    return std::make_unique<InProcessListener>(acceptance, [self = shared_from_this(), bound] {
      MutexLock lock(&self->mutex_);
      self->listening_.erase(bound);
    });
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address,
                                                       int /*connection*/,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    std::shared_ptr<Acceptance> acceptance;
    uint64_t seed;
    {
      MutexLock lock(&mutex_);
      while (listening_.count(address) == 0) {
        if (changed_.WaitWithDeadline(&mutex_, deadline)) return NoAnswer(address);
      }
      acceptance = listening_[address];
      seed = options_.seed * 1000003 + 2 * streams_++;
    }
    auto connection = std::make_shared<Connection>(address);
    auto opened =
        std::make_shared<InProcessStream>(connection, kOpened, StreamProof(), deliveries_);
    auto accepted =
        std::make_shared<InProcessStream>(connection, kAccepted, options_.proof, deliveries_);
    deliveries_->Add(opened);
    deliveries_->Add(accepted);
    {
      MutexLock lock(&acceptance->mutex);
      if (acceptance->closing) return absl::UnavailableError(address + ": the listener closed");
      ++acceptance->open;
      auto& streams = acceptance->streams;
      streams.erase(std::remove_if(streams.begin(), streams.end(),
                                   [](const auto& stream) { return stream.expired(); }),
                    streams.end());
      streams.push_back(accepted);
    }
    std::thread([=, options = options_] {
      AcceptAndDeliver(connection, accepted, *acceptance, options, seed);
    }).detach();

    MutexLock lock(&connection->mutex);
    while (!connection->up && !connection->ends[kOpened].closed) {
      if (connection->changed.WaitWithDeadline(&connection->mutex, deadline)) {
        connection->abandoned = true;
        return NoAnswer(address);
      }
    }
    if (!connection->up) return *connection->ends[kOpened].closed;
    std::thread([=, options = options_, sink = std::move(sink)]() mutable {
      opened->Deliver(*sink, options, seed + 1);
      sink.reset();
    }).detach();
    return opened;
  }

 private:
  static absl::Status NoAnswer(const std::string& address) {
    return absl::DeadlineExceededError(
        absl::StrCat("no stream to ", address, ": nobody accepted it before the deadline"));
  }

  static void AcceptAndDeliver(std::shared_ptr<Connection> connection,
                               std::shared_ptr<InProcessStream> stream, Acceptance& acceptance,
                               const InProcessLinkOptions& options, uint64_t seed) {
    std::shared_ptr<FrameSink> sink = acceptance.acceptor(stream);
    if (sink == nullptr) {
      stream->Cancel(absl::UnavailableError("the stream was refused"));
    } else {
      connection->mutex.Lock();
      const bool abandoned = connection->abandoned;
      connection->up = !abandoned;
      connection->changed.SignalAll();
      connection->mutex.Unlock();
      if (abandoned) {
        connection->Close(kAccepted, absl::UnavailableError("the peer gave up while connecting"),
                          absl::OkStatus());
      }
      stream->Deliver(*sink, options, seed);
    }
    sink.reset();
    stream.reset();
    MutexLock lock(&acceptance.mutex);
    --acceptance.open;
    acceptance.changed.SignalAll();
  }

  const InProcessLinkOptions options_;
  const std::shared_ptr<Deliveries> deliveries_ = std::make_shared<Deliveries>();
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::shared_ptr<Acceptance>> listening_ ABSL_GUARDED_BY(mutex_);
  int next_port_ ABSL_GUARDED_BY(mutex_) = 1024;
  uint64_t streams_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

std::shared_ptr<StreamLink> NewInProcessLink(InProcessLinkOptions options) {
  return std::make_shared<InProcessLink>(std::move(options));
}

namespace {

// The addresses at which the link's listeners can be reached without a network.
class NearAddresses {
 public:
  void Add(const std::string& address) {
    MutexLock lock(&mutex_);
    addresses_.insert(address);
  }

  void Remove(const std::string& address) {
    MutexLock lock(&mutex_);
    addresses_.erase(address);
  }

  bool Has(const std::string& address) const {
    MutexLock lock(&mutex_);
    return addresses_.count(address) > 0;
  }

 private:
  mutable Mutex mutex_;
  std::set<std::string> addresses_ ABSL_GUARDED_BY(mutex_);
};

class NearListener : public StreamListener {
 public:
  NearListener(std::shared_ptr<NearAddresses> addresses, std::unique_ptr<StreamListener> far,
               std::unique_ptr<StreamListener> near)
      : addresses_(std::move(addresses)), far_(std::move(far)), near_(std::move(near)) {
    addresses_->Add(far_->address());
  }

  ~NearListener() override { addresses_->Remove(far_->address()); }

  std::string address() const override { return far_->address(); }

 private:
  const std::shared_ptr<NearAddresses> addresses_;
  const std::unique_ptr<StreamListener> far_;
  const std::unique_ptr<StreamListener> near_;
};

class NearLink : public StreamLink {
 public:
  NearLink(std::shared_ptr<StreamLink> far, StreamProof proof) : far_(std::move(far)) {
    InProcessLinkOptions options;
    options.proof = std::move(proof);
    near_ = std::make_shared<InProcessLink>(options);
    const std::shared_ptr<LinkDriver> driver = far_->driver();
    if (driver == nullptr) return;
    driver_ = std::make_shared<LinkDriver>(
        driver->spin(), [driver, deliveries = near_->deliveries()](Drivables* drivables) {
          drivables->push_back(deliveries);
          driver->AddTo(drivables);
        });
  }

  absl::StatusOr<std::unique_ptr<StreamListener>> Listen(const std::string& address,
                                                         StreamAcceptor acceptor) override {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<StreamListener> far, far_->Listen(address, acceptor));
    GS_ASSIGN_OR_RETURN(std::unique_ptr<StreamListener> near,
                        near_->Listen(far->address(), std::move(acceptor)));
    return std::make_unique<NearListener>(addresses_, std::move(far), std::move(near));
  }

  absl::StatusOr<std::shared_ptr<FrameStream>> Connect(const std::string& address, int connection,
                                                       std::shared_ptr<FrameSink> sink,
                                                       Deadline deadline) override {
    StreamLink& link = addresses_->Has(address) ? *near_ : *far_;
    return link.Connect(address, connection, std::move(sink), deadline);
  }

  std::shared_ptr<LinkDriver> driver() override { return driver_; }

 private:
  const std::shared_ptr<NearAddresses> addresses_ = std::make_shared<NearAddresses>();
  const std::shared_ptr<StreamLink> far_;
  std::shared_ptr<InProcessLink> near_;
  std::shared_ptr<LinkDriver> driver_;  // or null
};

}  // namespace

std::shared_ptr<StreamLink> NewNearLink(std::shared_ptr<StreamLink> far, StreamProof proof) {
  return std::make_shared<NearLink>(std::move(far), std::move(proof));
}

}  // namespace gradsync
