// Steps of a job whose model is cut into stages: each stage's forwards and backwards as
// core/plan/pipeline_schedule.h orders them, what passes between stages, and the exchange of each
// stage's gradients among its replicas, all on one network. Or into slices, each of which computes
// a part of all layers and meets the others in the midst of forward and backward.
//
// A rank computes while its links send and receive, and sends never wait, as in
// worker/pipeline/stage_link.h; slices compute nothing until a meeting is over. A host's interface is
// shared evenly between what passes the cuts and what is exchanged. When the backward of its last
// micro-batch completes a bucket, a stage launches it; then it waits for the results, updates, and
// begins its next step, whatever other stages do.
//
// What is left out: figures and credits, which are small; copies; cores that are shared.

#ifndef GRADSYNC_SIMULATOR_PIPELINE_H_
#define GRADSYNC_SIMULATOR_PIPELINE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/pipeline_schedule.h"
#include "core/plan/plan.h"
#include "core/plan/slice_traffic.h"
#include "simulator/cluster.h"

namespace gradsync {

// Where a pass of a slice waits for the others.
struct PassMeeting {
  double after = 0;  // seconds of the pass
  SliceMeeting meeting;
};

// A micro-batch on a stage; seconds.
struct StagePass {
  double forward = 0;
  double backward = 0;
  // What is sent to the stage behind, which sends back as much; of the last stage nothing.
  int64_t output_bytes = 0;
  // Of slices, in their order; the same number on all of them.
  std::vector<PassMeeting> forward_meetings;
  std::vector<PassMeeting> backward_meetings;
};

struct SimulatedStage {
  StagePass each;
  StagePass last;  // of the last micro-batch of a step, which may be smaller
  // Part() of the whole model's plan, for as many workers as there are replicas.
  Plan plan;
  // When each bucket is complete, since the last micro-batch's backward began; never falling, at
  // most last.backward.
  std::vector<double> bucket_ready;
  double update = 0;  // of the stage's parameters
};

struct SimulatedPipeline {
  std::vector<SimulatedStage> stages;
  std::vector<std::vector<int>> ranks;  // by stage, by replica
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool slices = false;  // the stages are slices instead: nothing passes between them
  int64_t micro_batches = 1;
  int steps = 4;  // that are simulated
};

// Seconds, bytes.
struct PipelinePrediction {
  // From the end of a step to that of the next, on average without the first.
  double step = 0;
  // The first, which begins on all ranks at once, until the last rank is done.
  double first_step = 0;

  struct Stage {
    double computed = 0;  // forward and backward in a step
    double waited = 0;    // for neighbours, in the last step
    double exposed = 0;   // exchange of gradients that nothing hid, in the last step
    double update = 0;    // on the worker
  };
  std::vector<Stage> stages;  // on their first replicas

  // What part of all ranks' time in the first step they neither computed nor updated.
  double bubble_share = 0;
  // What crosses the busiest host's interface in a step, on average.
  double tx_bytes_max_host = 0;
  double rx_bytes_max_host = 0;
};

// Simulates by chunks. Server i of a cluster with servers is one of stage i modulo the number of
// stages, as in a job. `cluster.slowness` is by rank of the job. Pure; deterministic; thread-safe;
// blocks to compute.
//
// Errors: INVALID_ARGUMENT for a cluster that does not check (cluster.h) for all ranks, fewer
// servers than stages, mixed placement or another consistency than bsp, which jobs with stages do
// not have; meetings of stages, or of slices that are not in their pass, in order, and as many on
// all; ranks that are not those of stages times replicas, each once; times that are negative or not
// finite; a plan for another number of replicas; ready times that are not one per bucket, fall, or
// lie after backward; less than one step or one micro-batch.
absl::StatusOr<PipelinePrediction> SimulatePipeline(const SimulatedPipeline& pipeline,
                                                    const Cluster& cluster);

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_PIPELINE_H_
