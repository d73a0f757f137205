// What workers do in a step besides communicating: when their buckets become ready, and when the
// next step begins.

#ifndef GRADSYNC_SIMULATOR_STEP_CLOCK_H_
#define GRADSYNC_SIMULATOR_STEP_CLOCK_H_

#include <functional>
#include <utility>
#include <vector>

#include "core/plan/plan.h"
#include "core/plan/step_order.h"
#include "simulator/event_queue.h"

namespace gradsync {

// One step of one worker without communication; seconds. The times of what happens in it are at
// most forward + backward.
struct ComputeTimes : ComputedStep {
  double forward = 0;
  double backward = 0;
  double update = 0;  // of all parameters
};

// When a step ended on one worker, and what it waited for.
struct StepEnd {
  double end = 0;      // since the simulation began
  double exposed = 0;  // when nothing but communication happened
};

// How many times as long `rank` computes in `step`, from 0, as ComputeTimes says; more than 0.
using SlownessOfStep = std::function<double(int rank, int step)>;

// Runs the workers' steps as worker/train/trainer.h does: forward, backward, in which buckets are
// launched as they become ready, then for each bucket in order wait for its result and, when
// workers update, update it. Where buckets share memory (BucketSlots), computation stops for what
// core/plan/step_order.h says, and goes on later. Not thread-safe; nothing blocks.
class StepClock : private EventHandler {
 public:
  struct Options {
    Plan plan;
    ComputeTimes times;
    std::vector<double> update_shares;  // by bucket: what part of the update's time it takes
    std::vector<double> slowness;       // by rank
    SlownessOfStep slowness_of_step;    // instead, where it differs from step to step; may be null
    bool workers_update = true;
    double overhead = 0;  // at the end of each step; exposed
    int steps = 1;
  };

  // `launch(rank, step, bucket)` begins an exchange, which ends with Resolved(), and
  // `gather(rank, bucket)` what ends with Gathered(); both may end before they return. `gather` may
  // be null where the plan has no slots of parameters.
  StepClock(Options options, EventQueue* queue, std::function<void(int, int, int)> launch,
            std::function<void(int, int)> gather);

  // Begins the first step on all ranks, now.
  void Start();

  // The exchange of `bucket` that was last launched on `rank` is complete there.
  void Resolved(int rank, int bucket);

  // The parameters of `bucket` are there on `rank`.
  void Gathered(int rank, int bucket);

  // By step, by rank, of the steps that have ended.
  const std::vector<std::vector<StepEnd>>& ends() const { return ends_; }

 private:
  struct Rank {
    explicit Rank(GatherOrder order) : gathers(std::move(order)) {}

    int step = 0;
    double begin = 0;
    size_t next_mark = 0;
    bool waiting = false;  // at that one
    double waits_from = 0;
    double stalled = 0;  // for what marks wait for, in this step
    int open = 0;        // buckets that are not resolved
    std::vector<double> resolved;
    std::vector<bool> is_resolved;
    GatherOrder gathers;
    std::vector<bool> gathering;  // by bucket
  };

  double Slowness(int rank) const;  // in its step
  void OnEvent(int64_t tag) override;
  void Begin(int rank);
  double DueOf(int rank) const;
  void GoOn(int rank);
  bool MayPass(const Rank& rank, const StepMark& mark) const;
  void WakeUp(int rank);
  void EndStep(int rank);

  const Options options_;
  const std::vector<StepMark> marks_;
  const std::vector<UnitTurn> turns_;
  EventQueue* const queue_;
  const std::function<void(int, int, int)> launch_;
  const std::function<void(int, int)> gather_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<StepEnd>> ends_;
};

// The end of a step that began at `begin`, whose computation was stopped for `stalled`, and whose
// buckets were resolved at `resolved`.
StepEnd EndOfStep(const StepClock::Options& options, double begin, double slowness, double stalled,
                  const std::vector<double>& resolved);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_STEP_CLOCK_H_
