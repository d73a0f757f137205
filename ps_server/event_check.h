// Holds one server's log (server_event.h) to the rules of docs/use/consistency.md, for tests.

#ifndef GRADSYNC_PS_SERVER_EVENT_CHECK_H_
#define GRADSYNC_PS_SERVER_EVENT_CHECK_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/kinds.h"
#include "ps_server/server_event.h"

namespace gradsync {

// Takes one server's events in their order and keeps, from them alone, its own account of every
// rank's clock in every chunk. Not thread-safe.
class EventCheck {
 public:
  EventCheck(int world_size, Consistency consistency)
      : world_size_(world_size), consistency_(consistency) {}

  // Errors: FAILED_PRECONDITION naming the event and the rule that it breaks:
  //   - each rank's clocks in a chunk are applied once each, in order: 1, 2, 3, ...
  //   - what the server says of the slowest is so;
  //   - a gradient is applied only if the rank's last one was answered, and is at most S + 1 ahead
  //     of the slowest;
  //   - an answer follows its gradient, once, with a staleness that the consistency allows;
  //   - who may be answered is answered before the next gradient is applied: asp never waits, and
  //     whoever waited for a rank that settled or left is released;
  //   - final parameters go to all who have settled, when nobody trains any more.
  absl::Status Add(const ServerEvent& event);

  // After the last event: every rank's gradients of `steps` steps were applied to every chunk seen,
  // over all phases. Errors: FAILED_PRECONDITION.
  absl::Status CheckSteps(const std::vector<int64_t>& steps) const;

  int64_t max_staleness() const { return max_staleness_; }
  int64_t waits() const { return waits_; }  // gradients whose answer was not due at once
  // Answers that lack s steps of the slowest, at [s].
  const std::vector<int64_t>& answers() const { return answers_; }

 private:
  enum class Phase { kTraining, kSettled, kLeft };
  struct Rank {
    Phase phase = Phase::kTraining;
    int64_t clock = 0;
    int64_t total = 0;  // over all phases
    bool unanswered = false;
  };
  using Chunk = std::vector<Rank>;

  int64_t Slowest(const Chunk& chunk, int rank) const;
  std::string FirstError(const ServerEvent& event, Chunk& chunk);
  std::string OnApplied(const ServerEvent& event, Chunk& chunk);
  std::string OnPulled(const ServerEvent& event, Chunk& chunk);
  std::string OnFinal(const ServerEvent& event, Chunk& chunk);

  const int world_size_;
  const Consistency consistency_;
  std::map<std::pair<int, int>, Chunk> chunks_;
  int64_t max_staleness_ = 0;
  int64_t waits_ = 0;
  std::vector<int64_t> answers_;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_EVENT_CHECK_H_
