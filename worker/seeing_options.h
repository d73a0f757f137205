#ifndef GRADSYNC_WORKER_SEEING_OPTIONS_H_
#define GRADSYNC_WORKER_SEEING_OPTIONS_H_

#include <cstdint>
#include <string>

#include "core/plan/kinds.h"
#include "worker/train/kineto_trace.h"

namespace gradsync {

// A trace of some steps of all processes.
struct StepTraceOptions {
  std::string path;  // of the file, which rank 0 writes; empty: none
  int64_t first_step = 0;
  int64_t last_step = 0;

  // The links that the simulator is told of, each way, for its own picture of the first of these
  // steps; 0: none is drawn.
  double bytes_per_second = 0;
  Placement placement = Placement::kDedicated;  // where it is told that servers are

  bool wanted() const { return !path.empty(); }
};

// What a job leaves behind for people to look at, besides lines and metrics.
struct SeeingOptions {
  StepTraceOptions trace;
  TraceOptions kineto;      // of this rank alone
  std::string tensorboard;  // folder for rank 0's event file; empty: none
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_SEEING_OPTIONS_H_
