#ifndef GRADSYNC_DDP_STREAM_TIMER_H_
#define GRADSYNC_DDP_STREAM_TIMER_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu/gpu_api.h"
#include "gpu/gpu_resources.h"

namespace gradsync {

// How long the compute stream of a GPU stood still in each step, measured where the waiting is, on
// the stream, with events: the clock of the host says nothing of it. What a step took is known when
// the GPU has done it, which nobody waits for, so a time comes a step or more late.
//
// Not thread-safe. All calls on one thread, whose compute stream is meant. Errors: those of GpuApi.
class StreamTimer {
 public:
  // Room for so many waits in each step.
  static absl::StatusOr<std::unique_ptr<StreamTimer>> Create(std::shared_ptr<GpuApi> gpu,
                                                             size_t waits);

  // A step begins; those of the step before last must be done on the GPU, or are not counted.
  void BeginStep();

  // Around what makes the stream wait.
  absl::Status BeforeWait();
  absl::Status AfterWait();

  // The sum over the waits of the latest step that the GPU has done; zero if there is none.
  absl::StatusOr<absl::Duration> LastKnown();

 private:
  struct Wait {
    ScopedEvent begin;
    ScopedEvent end;
  };
  struct Step {
    std::vector<Wait> waits;
    size_t used = 0;
  };

  explicit StreamTimer(std::shared_ptr<GpuApi> gpu) : gpu_(std::move(gpu)) {}

  const std::shared_ptr<GpuApi> gpu_;
  Step steps_[2];  // in turns
  int current_ = 0;
  absl::Duration last_known_;
};

}  // namespace gradsync

#endif  // GRADSYNC_DDP_STREAM_TIMER_H_
