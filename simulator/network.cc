#include "simulator/network.h"

#include <algorithm>
#include <utility>

namespace gradsync {
namespace {

constexpr int64_t kPieceBytes = 16 << 10;

// Events of a host or of a message, whose number their tag has too.
enum Event { kPieceSent, kEntered, kArrived, kReceived, kEvents };

int64_t Tag(Event event, int number) { return kEvents * int64_t{number} + event; }

}  // namespace

SimulatedNetwork::SimulatedNetwork(const Options& options, std::vector<int> hosts,
                                   EventQueue* queue, MessageReceiver* receiver)
    : options_(options),
      burst_seconds_(options.burst_bytes > 0 ? options.burst_bytes / options.bytes_per_second : 0),
      hosts_(std::move(hosts)),
      queue_(queue),
      receiver_(receiver),
      cores_(options.cores) {
  const int count = hosts_.empty() ? 0 : *std::max_element(hosts_.begin(), hosts_.end()) + 1;
  interfaces_.resize(count);
  traffic_.resize(count);
}

int SimulatedNetwork::Keep(const SimulatedMessage& message) {
  if (free_.empty()) {
    messages_.push_back(message);
    return static_cast<int>(messages_.size()) - 1;
  }
  const int number = free_.back();
  free_.pop_back();
  messages_[number] = message;
  return number;
}

SimulatedNetwork::Connection& SimulatedNetwork::ConnectionOf(const SimulatedMessage& message) {
  constexpr int64_t kMostConnections = 1 << 10;
  const int64_t processes = static_cast<int64_t>(hosts_.size());
  const int64_t key =
      (message.from * processes + message.to) * kMostConnections + message.connection;
  Connection*& connection = connections_[key];
  if (connection == nullptr) connection = &connection_storage_.emplace_back();
  return *connection;
}

void SimulatedNetwork::Send(const SimulatedMessage& message) {
  const int number = Keep(message);
  if (observer_ != nullptr) {
    begins_.resize(messages_.size());
    begins_[number] = queue_->now();
  }
  const double entered = cores_.Done(queue_->now(), message.bytes);
  if (entered > queue_->now()) return queue_->At(entered, this, Tag(kEntered, number));
  Enter(number);
}

void SimulatedNetwork::Enter(int number) {
  const SimulatedMessage& message = messages_[number];
  const int from = hosts_[message.from];
  if (from == hosts_[message.to]) return queue_->At(queue_->now(), this, Tag(kArrived, number));
  Connection& connection = ConnectionOf(message);
  (message.urgent ? connection.urgent : connection.normal).push_back(number);
  if (connection.waiting || interfaces_[from].sending == &connection) return;
  connection.waiting = true;
  interfaces_[from].turns.push_back(&connection);
  if (interfaces_[from].sending == nullptr) SendPiece(from);
}

void SimulatedNetwork::SendPiece(int host) {
  Interface& out = interfaces_[host];
  if (out.turns.empty()) return;
  Connection& connection = *out.turns.front();
  out.turns.pop_front();
  connection.waiting = false;
  out.sending = &connection;
  double seconds = 0;
  if (connection.current < 0) {
    std::deque<int>& next = connection.urgent.empty() ? connection.normal : connection.urgent;
    connection.current = next.front();
    next.pop_front();
    connection.left = messages_[connection.current].bytes;
    if (observer_ != nullptr) begins_[connection.current] = queue_->now();
    if (connection.left > 0) seconds = options_.seconds_per_message;
  }
  const int64_t piece = std::min(connection.left, kPieceBytes);
  connection.left -= piece;
  seconds += static_cast<double>(piece) / options_.bytes_per_second;
  // At the receiver it queues behind what was sent to it before, from the moment it begins to
  // leave.
  Interface& in = interfaces_[hosts_[messages_[connection.current].to]];
  if (seconds > 0) in.arrived = std::max(in.arrived, queue_->now()) + seconds;
  connection.passes = seconds > 0 ? in.arrived - burst_seconds_ : queue_->now();
  in.received_seconds += seconds;
  out.sent_seconds += seconds;
  double sent = queue_->now() + seconds;
  if (burst_seconds_ > 0) {
    out.left = std::max(out.left, queue_->now()) + seconds;
    sent = std::max(queue_->now(), out.left - burst_seconds_);
  }
  queue_->At(sent, this, Tag(kPieceSent, host));
}

void SimulatedNetwork::PieceSent(int host) {
  Interface& out = interfaces_[host];
  Connection& connection = *std::exchange(out.sending, nullptr);
  if (connection.left == 0) {
    const int number = std::exchange(connection.current, -1);
    const SimulatedMessage& message = messages_[number];
    const int to = hosts_[message.to];
    if (message.bytes > 0) {
      traffic_[host].tx_bytes += message.bytes;
      ++traffic_[host].tx_messages;
      traffic_[to].rx_bytes += message.bytes;
      ++traffic_[to].rx_messages;
    }
    queue_->At(std::max(queue_->now(), connection.passes) + options_.latency, this,
               Tag(kArrived, number));
  }
  if (connection.current >= 0 || !connection.urgent.empty() || !connection.normal.empty()) {
    connection.waiting = true;
    out.turns.push_back(&connection);
  }
  SendPiece(host);
}

void SimulatedNetwork::OnEvent(int64_t tag) {
  const int number = static_cast<int>(tag / kEvents);
  switch (static_cast<Event>(tag % kEvents)) {
    case kPieceSent:
      return PieceSent(number);
    case kEntered:
      return Enter(number);
    case kArrived: {
      const double received = cores_.Done(queue_->now(), messages_[number].bytes);
      if (received > queue_->now()) return queue_->At(received, this, Tag(kReceived, number));
      return Deliver(number);
    }
    default:
      return Deliver(number);
  }
}

void SimulatedNetwork::Deliver(int number) {
  const SimulatedMessage message = messages_[number];
  if (observer_ != nullptr) observer_(message, begins_[number], queue_->now());
  free_.push_back(number);
  (message.receiver != nullptr ? message.receiver : receiver_)->OnMessage(message);
}

double SimulatedNetwork::BusySeconds(int host) const {
  return std::max(interfaces_[host].sent_seconds, interfaces_[host].received_seconds);
}

}  // namespace gradsync
