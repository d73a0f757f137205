// What workers do in a step besides communicating: when their buckets become ready, and when the
// next step begins.

#ifndef GRADSYNC_SIMULATOR_STEP_CLOCK_H_
#define GRADSYNC_SIMULATOR_STEP_CLOCK_H_

#include <functional>
#include <vector>

#include "simulator/event_queue.h"

namespace gradsync {

// One step of one worker without communication; seconds.
struct ComputeTimes {
  double forward = 0;
  double backward = 0;
  double update = 0;  // of all parameters
  // When each bucket of the plan is complete, since the step began; never falling, at most forward
  // + backward.
  std::vector<double> bucket_ready;
};

// When a step ended on one worker, and what it waited for.
struct StepEnd {
  double end = 0;      // since the simulation began
  double exposed = 0;  // after backward, when nothing but communication happened
};

// How many times as long `rank` computes in `step`, from 0, as ComputeTimes says; more than 0.
using SlownessOfStep = std::function<double(int rank, int step)>;

// Runs the workers' steps as train/trainer.h does: forward, backward, in which buckets are launched
// as they become ready, then for each bucket in order wait for its result and, when workers update,
// update it. Not thread-safe; nothing blocks.
class StepClock : private EventHandler {
 public:
  struct Options {
    ComputeTimes times;
    std::vector<double> update_shares;  // by bucket: what part of the update's time it takes
    std::vector<double> slowness;       // by rank
    SlownessOfStep slowness_of_step;    // instead, where it differs from step to step; may be null
    bool workers_update = true;
    double overhead = 0;  // at the end of each step; exposed
    int steps = 1;
  };

  // `launch(rank, step, bucket)` begins an exchange, which ends with Resolved().
  StepClock(Options options, EventQueue* queue, std::function<void(int, int, int)> launch);

  // Begins the first step on all ranks, now.
  void Start();

  // The exchange of `bucket` that was last launched on `rank` is complete there.
  void Resolved(int rank, int bucket);

  // By step, by rank, of the steps that have ended.
  const std::vector<std::vector<StepEnd>>& ends() const { return ends_; }

 private:
  struct Rank {
    int step = 0;
    double begin = 0;
    int next_bucket = 0;  // to launch
    int open = 0;         // not resolved
    std::vector<double> resolved;
  };

  double Slowness(int rank) const;  // in its step
  void OnEvent(int64_t tag) override;
  void Begin(int rank);
  void LaunchNext(int rank);
  void EndStep(int rank);

  const Options options_;
  EventQueue* const queue_;
  const std::function<void(int, int, int)> launch_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<StepEnd>> ends_;
};

// The end of a step that began at `begin` and whose buckets were resolved at `resolved`.
StepEnd EndOfStep(const StepClock::Options& options, double begin, double slowness,
                  const std::vector<double>& resolved);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_STEP_CLOCK_H_
