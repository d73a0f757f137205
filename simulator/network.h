// Messages between processes whose hosts meet in a switch, and the cores that emulated hosts share.

#ifndef GRADSYNC_SIMULATOR_NETWORK_H_
#define GRADSYNC_SIMULATOR_NETWORK_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/plan/wire_traffic.h"
#include "simulator/event_queue.h"

namespace gradsync {

// The cores of one machine on which all hosts are emulated, and what they spend on each end of a
// message, between its program and its host's interface: the kernel, the library and the addition
// to a sum. Seconds and bytes of payload.
struct CoreCosts {
  int count = 0;  // 0: each host has as many cores as it needs
  double seconds_per_message = 0;
  double seconds_per_byte = 0;

  double Seconds(int64_t bytes) const {
    return seconds_per_message + seconds_per_byte * static_cast<double>(bytes);
  }
};

// Who comes first has the core that is free first, and keeps it until done. Not thread-safe.
class SharedCores {
 public:
  explicit SharedCores(const CoreCosts& costs) : costs_(costs), busy_until_(costs.count) {}

  // When an end of a message that comes at `now`, which never falls, is done. Without cores that
  // are shared, and without bytes, at once.
  double Done(double now, int64_t bytes) {
    if (busy_until_.empty() || bytes == 0) return now;
    double& core = *std::min_element(busy_until_.begin(), busy_until_.end());
    core = std::max(core, now) + costs_.Seconds(bytes);
    return core;
  }

 private:
  const CoreCosts costs_;
  std::vector<double> busy_until_;
};

struct SimulatedMessage;

class MessageReceiver {
 public:
  virtual ~MessageReceiver() = default;
  virtual void OnMessage(const SimulatedMessage& message) = 0;
};

// A message on its way. `step`, `bucket`, `slot`, `kind` and `count` are for those who send and
// receive.
struct SimulatedMessage {
  int from = 0;  // processes
  int to = 0;
  int connection = 0;
  bool urgent = false;                  // overtakes what waits on its connection and is not urgent
  int64_t bytes = 0;                    // 0: costs nothing but its latency
  MessageReceiver* receiver = nullptr;  // is told when it arrives; null: the network's

  int kind = 0;
  int step = 0;
  int bucket = 0;
  int slot = 0;
  int count = 0;
};

// Told of each message that was delivered: when it began to leave, or was sent inside its host, and
// when its receiver had it. Seconds.
using MessageObserver = std::function<void(const SimulatedMessage&, double begin, double end)>;

// Full-duplex interfaces, one per host. An interface sends at a fixed rate and shares it evenly
// between its connections, in pieces of 16 KiB; on a
// connection messages follow each other. What arrives at a host passes its interface at the same
// rate, in the order in which it was sent, and need not be complete before it moves on, as with
// `tc tbf` at a host's egress and ingress. A message is delivered `latency` after its last byte has
// passed both interfaces. Inside a host it is delivered at once.
//
// Where hosts share the cores of one machine (CoreCosts), a message needs one before it gets to its
// connection, and one again when it has arrived, inside a host too. Messages of one connection may
// then overtake each other.
//
// Not modelled: loss, congestion control, full buffers. What a receiver cannot take yet waits in
// the switch, so a sender's other connections are not held up by it.
//
// Not thread-safe; nothing blocks.
class SimulatedNetwork : private EventHandler {
 public:
  struct Options {
    double bytes_per_second = 0;     // of payload, each way
    double latency = 0;              // seconds
    double seconds_per_message = 0;  // occupies both interfaces, on top of the bytes
    // What passes an idle interface at once, each way, and counts against the rate afterwards: the
    // depth of its token bucket.
    double burst_bytes = 0;
    CoreCosts cores = {};
  };

  // `hosts[p]` is the host of process p. `receiver` may be null where each message names its own.
  // `queue` and receivers must outlive the network.
  SimulatedNetwork(const Options& options, std::vector<int> hosts, EventQueue* queue,
                   MessageReceiver* receiver);

  void Send(const SimulatedMessage& message);

  // Before the first message; may be null.
  void Observe(MessageObserver observer) { observer_ = std::move(observer); }

  int processes() const { return static_cast<int>(hosts_.size()); }

  // What crossed each host's interface so far, and how long it was busy in its busier direction.
  const std::vector<NodeTraffic>& traffic() const { return traffic_; }
  double BusySeconds(int host) const;

 private:
  struct Connection {
    std::deque<int> urgent;  // numbers of messages
    std::deque<int> normal;
    int current = -1;      // being sent
    int64_t left = 0;      // bytes of it
    double passes = 0;     // when what was sent of it has passed the receiver's interface
    bool waiting = false;  // for its turn
  };
  struct Interface {
    std::deque<Connection*> turns;  // connections with something to send
    Connection* sending = nullptr;
    double arrived = 0;  // when all that was sent to it has passed, but for the burst
    double left = 0;     // the same of what it sent, where there are bursts
    double sent_seconds = 0;
    double received_seconds = 0;
  };

  void OnEvent(int64_t tag) override;
  void Enter(int number);  // has left its program
  void Deliver(int number);
  void SendPiece(int host);
  void PieceSent(int host);
  Connection& ConnectionOf(const SimulatedMessage& message);
  int Keep(const SimulatedMessage& message);

  const Options options_;
  const double burst_seconds_;
  const std::vector<int> hosts_;
  EventQueue* const queue_;
  MessageReceiver* const receiver_;
  std::vector<Interface> interfaces_;
  absl::flat_hash_map<int64_t, Connection*> connections_;
  std::deque<Connection> connection_storage_;
  std::vector<SimulatedMessage> messages_;  // by number
  std::vector<double> begins_;              // by number, where observed
  MessageObserver observer_;
  std::vector<int> free_;  // numbers that are
  std::vector<NodeTraffic> traffic_;
  SharedCores cores_;
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_NETWORK_H_
