#include "simulator/step_clock.h"

#include <algorithm>
#include <utility>

namespace gradsync {

StepEnd EndOfStep(const StepClock::Options& options, double begin, double slowness, double stalled,
                  const std::vector<double>& resolved) {
  StepEnd step;
  step.exposed = stalled;
  double time = begin + slowness * (options.times.forward + options.times.backward) + stalled;
  for (size_t b = 0; b < resolved.size(); ++b) {
    step.exposed += std::max(0.0, resolved[b] - time);
    time = std::max(time, resolved[b]);
    if (options.workers_update) time += slowness * options.times.update * options.update_shares[b];
  }
  step.exposed += options.overhead;
  step.end = time + options.overhead;
  return step;
}

StepClock::StepClock(Options options, EventQueue* queue, std::function<void(int, int, int)> launch,
                     std::function<void(int, int)> gather)
    : options_(std::move(options)),
      marks_(MarksOfStep(options_.plan, options_.times)),
      turns_(TurnsOfStep(static_cast<int>(options_.times.units.size()))),
      queue_(queue),
      launch_(std::move(launch)),
      gather_(std::move(gather)) {
  const size_t buckets = options_.plan.buckets().size();
  Rank rank(GatherOrder(static_cast<int>(buckets), options_.plan.slots().parameters));
  rank.gathering.assign(buckets, false);
  ranks_.assign(options_.slowness.size(), rank);
  ends_.assign(options_.steps, std::vector<StepEnd>(ranks_.size()));
}

void StepClock::Start() {
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) Begin(rank);
}

// Tags: 2 * rank for a mark, 2 * rank + 1 for the begin of a step.
void StepClock::OnEvent(int64_t tag) {
  const int rank = static_cast<int>(tag / 2);
  if (tag % 2 == 0) return GoOn(rank);
  Begin(rank);
}

double StepClock::Slowness(int rank) const {
  if (options_.slowness_of_step == nullptr) return options_.slowness[rank];
  return options_.slowness_of_step(rank, ranks_[rank].step);
}

void StepClock::Begin(int rank) {
  Rank& state = ranks_[rank];
  if (state.step == options_.steps) return;
  const size_t buckets = options_.plan.buckets().size();
  state.begin = queue_->now();
  state.next_mark = 0;
  state.stalled = 0;
  state.open = static_cast<int>(buckets);
  state.resolved.assign(buckets, 0);
  state.is_resolved.assign(buckets, false);
  if (buckets == 0) return EndStep(rank);
  queue_->At(DueOf(rank), this, 2 * int64_t{rank});
}

double StepClock::DueOf(int rank) const {
  const Rank& state = ranks_[rank];
  return state.begin + Slowness(rank) * marks_[state.next_mark].at + state.stalled;
}

// Passes marks until one lies ahead or has to wait.
void StepClock::GoOn(int rank) {
  Rank& state = ranks_[rank];
  while (!state.waiting && state.next_mark < marks_.size()) {
    const StepMark& mark = marks_[state.next_mark];
    if (const double due = DueOf(rank); due > queue_->now()) {
      queue_->At(due, this, 2 * int64_t{rank});
      return;
    }
    if (mark.kind == StepMark::Kind::kTurn) {
      const std::vector<int> buckets =
          state.gathers.Take(options_.times.units, turns_[mark.number]);
      for (int bucket : buckets) state.gathering[bucket] = true;
      for (int bucket : buckets) gather_(rank, bucket);
    }
    if (!MayPass(state, mark)) {
      state.waiting = true;
      state.waits_from = queue_->now();
      return;
    }
    ++state.next_mark;
    if (mark.kind != StepMark::Kind::kLaunch) continue;
    if (options_.plan.slots().parameters > 0) state.gathers.Forget(mark.number);
    launch_(rank, state.step, mark.number);
  }
}

bool StepClock::MayPass(const Rank& rank, const StepMark& mark) const {
  if (mark.kind == StepMark::Kind::kMakeRoom) {
    return rank.is_resolved[mark.number - options_.plan.slots().gradients];
  }
  if (mark.kind == StepMark::Kind::kLaunch) return true;
  const std::vector<int>& needed = options_.times.units[turns_[mark.number].unit];
  return std::none_of(needed.begin(), needed.end(),
                      [&rank](int bucket) { return rank.gathering[bucket]; });
}

void StepClock::WakeUp(int rank) {
  Rank& state = ranks_[rank];
  if (!state.waiting || !MayPass(state, marks_[state.next_mark])) return;
  state.waiting = false;
  state.stalled += queue_->now() - state.waits_from;
  ++state.next_mark;
  GoOn(rank);
}

void StepClock::Resolved(int rank, int bucket) {
  ranks_[rank].resolved[bucket] = queue_->now();
  ranks_[rank].is_resolved[bucket] = true;
  if (--ranks_[rank].open == 0) return EndStep(rank);
  WakeUp(rank);
}

void StepClock::Gathered(int rank, int bucket) {
  ranks_[rank].gathering[bucket] = false;
  WakeUp(rank);
}

void StepClock::EndStep(int rank) {
  Rank& state = ranks_[rank];
  const StepEnd end =
      EndOfStep(options_, state.begin, Slowness(rank), state.stalled, state.resolved);
  ends_[state.step][rank] = end;
  ++state.step;
  queue_->At(end.end, this, 2 * int64_t{rank} + 1);
}

}  // namespace gradsync
