#include "core/plan/pipeline_schedule.h"

#include <algorithm>

#include "core/base/errors.h"

namespace gradsync {
namespace {

constexpr PipelineSchedule kSchedules[] = {PipelineSchedule::kNaive, PipelineSchedule::kGpipe,
                                           PipelineSchedule::kOneForwardOneBackward};

}  // namespace

absl::string_view PipelineScheduleName(PipelineSchedule schedule) {
  switch (schedule) {
    case PipelineSchedule::kNaive:
      return "naive";
    case PipelineSchedule::kGpipe:
      return "gpipe";
    case PipelineSchedule::kOneForwardOneBackward:
      return "1f1b";
  }
  return "none";
}

absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name) {
  for (PipelineSchedule schedule : kSchedules) {
    if (PipelineScheduleName(schedule) == name) return schedule;
  }
  return FlagError("pipeline_schedule", "naive, gpipe or 1f1b", name);
}

int64_t InFlight(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches) {
  switch (schedule) {
    case PipelineSchedule::kNaive:
      return 1;
    case PipelineSchedule::kGpipe:
      return micro_batches;
    case PipelineSchedule::kOneForwardOneBackward:
      return std::min<int64_t>(micro_batches, 3 * (stages - stage) - 2);
  }
  return 1;
}

StageOrder::StageOrder(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches)
    : schedule_(schedule),
      micro_batches_(micro_batches),
      in_flight_(InFlight(schedule, stages, stage, micro_batches)) {}

bool StageOrder::may_forward() const {
  return forwards_ < micro_batches_ && forwards_ - backwards_ < in_flight_;
}

bool StageOrder::may_backward() const {
  if (schedule_ == PipelineSchedule::kGpipe && forwards_ < micro_batches_) return false;
  return backwards_ < forwards_;
}

absl::optional<StageAction> StageOrder::Next(bool input_here, bool gradient_here) const {
  if (may_backward() && gradient_here) return backward();
  if (may_forward() && input_here) return forward();
  return absl::nullopt;
}

}  // namespace gradsync
