#ifndef GRADSYNC_GRADSYNC_DDP_STREAM_TIMER_H_
#define GRADSYNC_GRADSYNC_DDP_STREAM_TIMER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"

namespace gradsync {

// How long the compute stream of a GPU stood still in each step, measured where the waiting is, on
// the stream, with events: the clock of the host says nothing of it. What a step took is known when
// the GPU has done it, which nobody waits for, and the host may be several steps ahead of the GPU:
// the last kSteps steps are kept.
//
// Not thread-safe. All calls on one thread, whose compute stream is meant. Errors: those of GpuApi.
class StreamTimer {
 public:
  static constexpr size_t kSteps = 8;

  struct StandStill {
    int64_t step = 0;  // 0: none is known
    absl::Duration time;
  };

  // Room for so many waits in each step.
  static absl::StatusOr<std::unique_ptr<StreamTimer>> Create(std::shared_ptr<GpuApi> gpu,
                                                             size_t waits);

  // A step begins, with a number above those before. Where the GPU has not done the step kSteps
  // earlier, whose events would be used again, the step is not measured.
  absl::Status BeginStep(int64_t step);

  // Around what makes the stream wait.
  absl::Status BeforeWait();
  absl::Status AfterWait();

  // The sum over the waits of the newest step that the GPU has done.
  absl::StatusOr<StandStill> Newest() const;

  // That of a step; none if the GPU has not done it, or if it was not measured or is not kept.
  absl::StatusOr<absl::optional<absl::Duration>> Of(int64_t step) const;

 private:
  struct Wait {
    ScopedEvent begin;
    ScopedEvent end;
  };
  struct Step {
    int64_t number = 0;  // 0: never used
    std::vector<Wait> waits;
    size_t used = 0;
  };

  explicit StreamTimer(std::shared_ptr<GpuApi> gpu) : gpu_(std::move(gpu)) {}

  absl::StatusOr<bool> Done(const Step& step) const;
  absl::StatusOr<absl::Duration> Sum(const Step& step) const;

  const std::shared_ptr<GpuApi> gpu_;
  std::array<Step, kSteps> steps_;  // in turns
  size_t current_ = 0;
  bool measuring_ = false;  // the step that began last
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_STREAM_TIMER_H_
