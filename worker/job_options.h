#ifndef GRADSYNC_WORKER_JOB_OPTIONS_H_
#define GRADSYNC_WORKER_JOB_OPTIONS_H_

#include <cstdint>
#include <string>

#include "join/join.h"
#include "train/trainer.h"
#include "worker/effective_flags.h"
#include "worker/seeing_options.h"

namespace gradsync {

// A worker's flags, resolved.
struct JobOptions {
  JoinOptions join;
  TrainerOptions trainer;
  std::string metrics_json;
  SeeingOptions seeing;
  int64_t log_every = 10;  // rank 0 prints a line every so many steps; 0: none
  EffectiveFlags flags;    // where all of this comes from, for records
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_JOB_OPTIONS_H_
