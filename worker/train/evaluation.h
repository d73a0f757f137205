// What a model could do on a job's test split.

#ifndef GRADSYNC_WORKER_TRAIN_EVALUATION_H_
#define GRADSYNC_WORKER_TRAIN_EVALUATION_H_

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/optional.h"

namespace gradsync {

struct Evaluation {
  double loss = 0;      // mean over all samples
  double accuracy = 0;  // top-1, 0 to 1
  int64_t samples = 0;
};

// Of the weights, and of their average where the job keeps one.
struct Evaluations {
  Evaluation weights;
  absl::optional<Evaluation> average;

  // What the job is judged by: the average, if there is one.
  const Evaluation& judged() const { return average.has_value() ? *average : weights; }
};

// An evaluation in the course of training.
struct EvaluationPoint {
  int64_t step = 0;     // after which
  absl::Duration time;  // as TrainingResult::step_ends
  Evaluations tested;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_EVALUATION_H_
