#include "simulator/step_clock.h"

#include <algorithm>
#include <utility>

namespace gradsync {

StepEnd EndOfStep(const StepClock::Options& options, double begin, double slowness,
                  const std::vector<double>& resolved) {
  StepEnd step;
  double time = begin + slowness * (options.times.forward + options.times.backward);
  for (size_t b = 0; b < resolved.size(); ++b) {
    step.exposed += std::max(0.0, resolved[b] - time);
    time = std::max(time, resolved[b]);
    if (options.workers_update) time += slowness * options.times.update * options.update_shares[b];
  }
  step.exposed += options.overhead;
  step.end = time + options.overhead;
  return step;
}

StepClock::StepClock(Options options, EventQueue* queue, std::function<void(int, int, int)> launch)
    : options_(std::move(options)), queue_(queue), launch_(std::move(launch)) {
  ranks_.resize(options_.slowness.size());
  ends_.assign(options_.steps, std::vector<StepEnd>(ranks_.size()));
}

void StepClock::Start() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) Begin(rank);
}

// Tags: 2 * rank for a bucket that is ready, 2 * rank + 1 for the begin of a step.
void StepClock::OnEvent(int64_t tag) {
  const int rank = static_cast<int>(tag / 2);
  if (tag % 2 == 0) return LaunchNext(rank);
  Begin(rank);
}

double StepClock::Slowness(int rank) const {
  if (options_.slowness_of_step == nullptr) return options_.slowness[rank];
  return options_.slowness_of_step(rank, ranks_[rank].step);
}

void StepClock::Begin(int rank) {
  Rank& state = ranks_[rank];
  if (state.step == options_.steps) return;
  const std::vector<double>& ready = options_.times.bucket_ready;
  state.begin = queue_->now();
  state.next_bucket = 0;
  state.open = static_cast<int>(ready.size());
  state.resolved.assign(ready.size(), 0);
  const double slowness = Slowness(rank);
  for (double time : ready) {
    queue_->At(state.begin + slowness * time, this, 2 * int64_t{rank});
  }
  if (ready.empty()) EndStep(rank);
}

void StepClock::LaunchNext(int rank) {
  const int bucket = ranks_[rank].next_bucket++;
  launch_(rank, ranks_[rank].step, bucket);
}

void StepClock::Resolved(int rank, int bucket) {
  ranks_[rank].resolved[bucket] = queue_->now();
  if (--ranks_[rank].open == 0) EndStep(rank);
}

void StepClock::EndStep(int rank) {
  Rank& state = ranks_[rank];
  const StepEnd end = EndOfStep(options_, state.begin, Slowness(rank), state.resolved);
  ends_[state.step][rank] = end;
  ++state.step;
  queue_->At(end.end, this, 2 * int64_t{rank} + 1);
}

}  // namespace gradsync
