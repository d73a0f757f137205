// A recorded step, repeated with real bytes and no computation.

#ifndef GRADSYNC_BENCHMARKS_REPLAY_STEP_REPLAY_H_
#define GRADSYNC_BENCHMARKS_REPLAY_STEP_REPLAY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "benchmarks/replay/replay_clock.h"
#include "benchmarks/replay/stage_replay.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"
#include "proto/rank_spec.pb.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// All ranks agree on all but `rank`, `replica` and `stage`.
struct ReplayOptions {
  int rank = 0;
  int replica = -1;  // this rank's number among those that it exchanges with; -1: its rank
  // What is computed instead of the profile's whole step, of a model in stages; may be null.
  StageReplay* stage = nullptr;
  proto::RankSpec::Replay spec;
  Consistency consistency;  // of the backend
  absl::Duration timeout = absl::Seconds(60);
};

// One rank's part: binds `plan`, which ProfilePlan() made from its profile, then trains without
// computing. In each step it launches every bucket at the time at which the recorded step had its
// gradients complete, never before; waits for the recorded end of backward; waits for the handles
// in order, as ddp/ does; and begins the next step. Between these it sleeps, so that a machine with
// few cores can stand for as many workers as their exchanges, which are real, leave it time for.
//
// Under UpdateSite::kWorker each bucket's resolution is followed by its share, by bytes, of the
// recorded update, slept too: the workers' optimizers run on their own hosts, and to run all of
// them on this machine's cores would slow down the exchange that is measured. Owners' optimizers
// are part of the exchange and run.
//
// In the first step the gradients are those of exact_input.h and every element of the result is
// compared with what it must be (not under compression): to the bit under bsp; under ssp and asp,
// where all ranks settle after it and owners add contributions one by one as they come, within
// rounding. Later steps exchange what the one before
// left in the buckets, which stays of that size.
//
// Where buckets share memory (BucketSlots) the step stops as a real one does, for memory and, block
// by block, for gathered parameters (core/plan/step_order.h), and what follows is later by as much;
// that counts as exposed. Gathers beside those of steps, for what is verified and for the hash,
// come before and after the measured steps; there are kExtraGathers of each bucket.
//
// A stage (stage_replay.h) computes its micro-batches instead, exchanges what the last of them
// completes, and has `plan`, its part of the model's; time that it waits for neighbours counts as
// waiting for data.
//
// `start` must return on all ranks at about the same time; it is called before the warm-up and
// before the measured steps, which end with Settle(): every rank does as many, also where some are
// done before others. `clock` may be simulated. Blocks until all is done, shut down
// included. The result lacks what only the caller knows: topology, link, update, model, ...
// Errors: INVALID_ARGUMENT for options out of range; what the backend or `start` says. Wrong
// results are counted, not an error.
absl::StatusOr<proto::WorkerMetrics> ReplaySteps(const ReplayOptions& options, const Plan& plan,
                                                 const std::function<absl::Status()>& start,
                                                 ReplayClock* clock, GradientSync* sync);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_REPLAY_STEP_REPLAY_H_
