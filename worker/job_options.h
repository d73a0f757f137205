#ifndef GRADSYNC_WORKER_JOB_OPTIONS_H_
#define GRADSYNC_WORKER_JOB_OPTIONS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "gradsync/join/join.h"
#include "worker/effective_flags.h"
#include "worker/model_places.h"
#include "worker/operation.h"
#include "worker/seeing.h"
#include "worker/train/trainer.h"

namespace gradsync {

// A worker's flags, resolved.
struct JobOptions {
  JoinOptions join;
  ModelLinks model_links;  // between stages and between slices
  TrainerOptions trainer;
  std::string offload;  // what owners on the host keep and do for a GPU (--offload); empty: nothing
  std::string metrics_json;
  SeeingOptions seeing;
  int64_t log_every = 10;  // rank 0 prints a line every so many steps; 0: none
  EffectiveFlags flags;    // where all of this comes from, for records
  // The number of the signal that asks this worker to end, or 0; it may be set at any time. Null:
  // nobody asks. `catch_interrupt` is called before the first step: from then on the job drains
  // (core/group/drain.h).
  const std::atomic<int>* interrupt = nullptr;
  std::function<void()> catch_interrupt;
  LiveMetricsOptions live_metrics;
  std::atomic<int64_t>* newest_step = nullptr;  // gets the number of the newest step; may be null
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_OPTIONS_H_
