// A ring of engines in one thread: every delivery, release, deferred task and launch is an event,
// and a seed chooses the order. For tests: thousands of orders, each repeatable, and a deadlock is
// simply "no event is left".

#ifndef GRADSYNC_ALLREDUCE_SIMULATED_RING_H_
#define GRADSYNC_ALLREDUCE_SIMULATED_RING_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "allreduce/ring_engine.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace gradsync {

struct SimulatedRingOptions {
  Plan plan;
  UpdateSite update_site = UpdateSite::kWorker;
  int connections = 2;
  int lead = 2;
  uint64_t seed = 0;
};

// As unkind as the contract of core/links/frame_stream.h allows: payloads come in odd parts; a
// frame may be released before it arrives (its bytes are in the kernel) or long after; streams
// overtake each other. Memory that changes while it is lent is noted as an error. Not thread-safe.
class SimulatedRing {
 public:
  explicit SimulatedRing(SimulatedRingOptions options);

  RingEngine& engine(int rank) { return *engines_[rank]; }
  float* grad(int rank, int bucket) { return memory_[rank][bucket].grad; }
  float* param(int rank, int bucket) { return memory_[rank][bucket].param; }

  // What a rank does next of its own accord: false when it has nothing to do now. Tried among the
  // other events.
  using Actor = std::function<bool(int rank)>;

  // Runs until `done` says so. Errors: what an engine reported or refused; ABORTED when nothing can
  // happen any more, although it is not done; DATA_LOSS when lent memory changed.
  absl::Status Run(const Actor& act, const std::function<bool()>& done);

 private:
  struct Frame {
    proto::FrameHeader header;
    std::string bytes;  // at the time of sending
    bool urgent = false;
  };
  struct Loan {
    absl::Span<const char> memory;
    std::string bytes;
    gradsync::Release released;
  };
  struct Wire {
    std::deque<Frame> urgent;
    std::deque<Frame> normal;
  };

  void Send(int rank, int connection, OutgoingFrame frame);
  void Deliver(Wire& wire, int to);
  void Release(size_t index);
  Payload Cut(std::string bytes);
  void Note(absl::Status status) { error_.Update(status); }

  const SimulatedRingOptions options_;
  const int n_;
  std::mt19937_64 random_;
  absl::Status error_;
  std::vector<std::vector<Wire>> wires_;  // by sender and connection
  std::vector<Loan> loans_;
  std::vector<std::deque<TaskQueue::Task>> tasks_;  // by rank
  std::vector<std::vector<GradBucket>> buckets_;
  std::vector<std::vector<BucketMemory>> memory_;
  std::vector<std::shared_ptr<RingEngine>> engines_;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_SIMULATED_RING_H_
