#include "allreduce/simulated_ring.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/plan/ring_schedule.h"
#include "core/sync/buckets.h"

namespace gradsync {

SimulatedRing::SimulatedRing(SimulatedRingOptions options)
    : options_(std::move(options)),
      n_(options_.plan.world_size()),
      random_(options_.seed),
      wires_(n_, std::vector<Wire>(options_.connections)),
      tasks_(n_) {
  for (int rank = 0; rank < n_; ++rank) {
    buckets_.push_back(*AllocateBuckets(options_.plan));
    memory_.push_back(MemoryOf(buckets_.back()));
    RingEngineOptions engine;
    engine.plan = options_.plan;
    engine.rank = rank;
    engine.update_site = options_.update_site;
    engine.connections = options_.connections;
    engine.lead = options_.lead;
    engine.buckets = buckets_.back();
    engine.send = [this, rank](int connection, OutgoingFrame frame) {
      Send(rank, connection, std::move(frame));
    };
    engine.defer = [this, rank](TaskQueue::Task task) { tasks_[rank].push_back(std::move(task)); };
    engine.report = [this](absl::Status status) { Note(std::move(status)); };
    engines_.push_back(std::make_shared<RingEngine>(std::move(engine)));
  }
}

void SimulatedRing::Send(int rank, int connection, OutgoingFrame frame) {
  std::string bytes(frame.payload.data(), frame.payload.size());
  Wire& wire = wires_[rank][connection];
  (frame.urgent ? wire.urgent : wire.normal).push_back({frame.header, bytes, frame.urgent});
  loans_.push_back({frame.payload, std::move(bytes), std::move(frame.released)});
}

Payload SimulatedRing::Cut(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  std::vector<absl::Span<const char>> parts;
  absl::Span<const char> rest(*owner);
  while (rest.size() > 1 && parts.size() < 4) {
    const size_t part = 1 + random_() % std::min<size_t>(rest.size() - 1, 300);
    parts.push_back(rest.first(part));
    rest.remove_prefix(part);
  }
  if (!rest.empty()) parts.push_back(rest);
  return MakePayload(std::move(parts), std::move(owner));
}

void SimulatedRing::Deliver(Wire& wire, int to) {
  std::deque<Frame>& queue = wire.urgent.empty() ? wire.normal : wire.urgent;
  Frame frame = std::move(queue.front());
  queue.pop_front();
  Note(engines_[to]->OnFrame(frame.header, Cut(std::move(frame.bytes))));
}

void SimulatedRing::Release(size_t index) {
  std::swap(loans_[index], loans_.back());
  Loan loan = std::move(loans_.back());
  loans_.pop_back();
  if (!std::equal(loan.memory.begin(), loan.memory.end(), loan.bytes.begin())) {
    Note(absl::DataLossError("memory changed while it was lent to the link"));
  }
  loan.released.Run();
}

absl::Status SimulatedRing::Run(const Actor& act, const std::function<bool()>& done) {
  // Events by number: deliveries, then tasks, then actors; then one for any loan.
  const int deliveries = n_ * options_.connections;
  std::vector<int> events(deliveries + 2 * n_ + 1);
  std::iota(events.begin(), events.end(), 0);
  while (error_.ok() && !done()) {
    std::shuffle(events.begin(), events.end(), random_);
    bool happened = false;
    for (size_t i = 0; i < events.size() && !happened; ++i) {
      const int event = events[i];
      if (event < deliveries) {
        const int from = event / options_.connections;
        Wire& wire = wires_[from][event % options_.connections];
        happened = !wire.urgent.empty() || !wire.normal.empty();
        if (happened) Deliver(wire, RingNext(from, n_));
      } else if (event < deliveries + n_) {
        std::deque<TaskQueue::Task>& tasks = tasks_[event - deliveries];
        happened = !tasks.empty();
        if (happened) {
          TaskQueue::Task task = std::move(tasks.front());
          tasks.pop_front();
          std::move(task)();
        }
      } else if (event < deliveries + 2 * n_) {
        happened = act(event - deliveries - n_);
      } else {
        happened = !loans_.empty();
        if (happened) Release(random_() % loans_.size());
      }
    }
    if (!happened)
      return absl::AbortedError(absl::StrCat("nothing can happen any more, seed ", options_.seed));
  }
  return error_;
}

}  // namespace gradsync
