// The simulator's front door: how long a training step takes on a cluster.
//
// Two methods give the same answer, within 1 % (tested at 16 and 64 workers). *Chunks* moves
// every chunk of every rank through ring_exchange.h or ps_exchange.h, as the real backends do; its
// cost grows with the bytes that all hosts send. *Fluid* (fluid.h) exploits that equal hosts do the
// same things at the same times; its cost hardly grows with the number of workers.
//
// Where buckets share memory (BucketSlots) every step is simulated by chunks, since computation
// stops now and then.
//
// What is modelled, what is left out, and how well it predicts is in docs/compare/cost_model.md. Pure and
// deterministic; thread-safe; blocks only to compute.

#ifndef GRADSYNC_SIMULATOR_SIMULATE_H_
#define GRADSYNC_SIMULATOR_SIMULATE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "simulator/cluster.h"
#include "simulator/step_clock.h"

namespace gradsync {

enum class SimulationMethod {
  // Chunks where hosts share cores, or workers are not all alike; else up to 64 workers, if the
  // messages are not too many.
  kAutomatic,
  kChunks,
  kFluid,  // all workers alike
};

// A step on the rank that ends last. Seconds and bytes.
struct StepPrediction {
  double step = 0;
  double forward = 0;
  double backward = 0;
  double exposed = 0;  // communication that nothing hides, seconds_per_step included
  double update = 0;   // on the worker
  // What crosses the busiest host's interface in each direction, exactly as HostTraffic() of
  // core/plan/wire_traffic.h; under fluid, without the rounding to chunks.
  double tx_bytes_max_host = 0;
  double rx_bytes_max_host = 0;
  // What part of the step the interface that is busiest is busy, in its busier direction.
  double busy_share = 0;
  SimulationMethod method = SimulationMethod::kChunks;  // that was used
};

// One step under bsp, which begins on all ranks at once, of the workers that `plan` is made for.
// With one worker and a ring nothing is sent.
//
// Errors: INVALID_ARGUMENT for a cluster that does not check (cluster.h), times that are negative
// or not finite, ready times that are not one per bucket, fall, or lie after backward, kFluid
// with workers that are not alike, hosts that share cores or buckets that share memory, and, where owners alone keep
// parameters, updates that are not theirs, units that leave out a bucket, and turns that are not
// those of TurnsOfStep() (core/plan/step_order.h).
absl::StatusOr<StepPrediction> SimulateStep(const Plan& plan, const Cluster& cluster,
                                            const ComputeTimes& times,
                                            SimulationMethod method = SimulationMethod::kAutomatic);

// A step, piece by piece. Seconds since it began on all ranks; processes are numbered as in
// core/plan/wire_traffic.h.
struct SimulatedStep {
  struct Transfer {
    int from = 0;
    int to = 0;
    bool back = false;  // a result; else a contribution
    ChunkId chunk;
    int64_t bytes = 0;
    double begin = 0;  // when it begins to leave
    double end = 0;    // when its receiver has it
  };
  struct Update {
    int owner = 0;  // process
    ChunkId chunk;
    double begin = 0;
    double end = 0;
  };
  struct Rank {
    double forward = 0;  // when it ends
    double backward = 0;
    std::vector<double> ready;     // by bucket
    std::vector<double> resolved;  // by bucket
    std::vector<double> updates;   // by bucket: how long, on the worker
    double end = 0;
  };
  std::vector<Rank> ranks;
  std::vector<Transfer> transfers;
  std::vector<Update> updates;
};

// What SimulateStep() predicts by chunks, with all that happens in it. Slots of the plan are left
// out, and what `times` say of them: they are for steps that were measured, waiting included.
// Errors: those of SimulateStep().
absl::StatusOr<SimulatedStep> SimulateStepInFull(const Plan& with_slots, const Cluster& cluster,
                                                 const ComputeTimes& times);

// How fast a group goes on over many steps, the first of which begins on all ranks at once.
struct GroupRate {
  // Steps of all workers over workers and time, until the first worker has done all of its steps.
  double steps_per_second = 0;
  int64_t max_staleness = 0;  // under ssp and asp: by how much an answer's clock was ahead at most
};

// `steps` of each worker, by chunks; what consistency and stragglers do to the rate. A step's
// begin waits for nothing but the worker's own last step. `slowness`, if any, replaces the
// cluster's. Errors: those of SimulateStep(), and INVALID_ARGUMENT for less than one step.
absl::StatusOr<GroupRate> SimulateSteps(const Plan& plan, const Cluster& cluster,
                                        const ComputeTimes& times, int steps,
                                        const SlownessOfStep& slowness = nullptr);

// All buckets ready at once, nothing computed: what sync_bench measures, seconds.
absl::StatusOr<double> SimulateExchange(const Plan& plan, const Cluster& cluster,
                                        SimulationMethod method = SimulationMethod::kAutomatic);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_SIMULATE_H_
