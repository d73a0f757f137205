#ifndef GRADSYNC_WORKER_TRAIN_STEP_LOG_H_
#define GRADSYNC_WORKER_TRAIN_STEP_LOG_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "worker/train/step_times.h"

namespace gradsync {

struct LoggedStep {
  int64_t step = 0;  // 1 for the first of the job
  double loss = 0;
  double lr = 0;
  absl::Duration end;
  StepTimes times;
};

// A job's steps in memory that does not grow with their number: all of them while they are few,
// then every 2nd, 4th, 8th ... of them. Not thread-safe.
class StepLog {
 public:
  static constexpr size_t kMost = 8192;

  // Keeps at most `most` steps, an even number above 0.
  explicit StepLog(size_t most = kMost) : most_(most) {}

  void Add(const LoggedStep& step);

  // One of so many is kept, the last of them.
  int64_t stride() const { return stride_; }
  int64_t added() const { return added_; }

  // In order: those numbered stride(), 2 stride(), ... among the steps added.
  const std::vector<LoggedStep>& kept() const { return kept_; }

 private:
  const size_t most_;
  int64_t stride_ = 1;
  int64_t added_ = 0;
  std::vector<LoggedStep> kept_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_STEP_LOG_H_
