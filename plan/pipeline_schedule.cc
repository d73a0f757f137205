#include "plan/pipeline_schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/flag_error.h"

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

std::vector<StageAction> ActionsOf(PipelineSchedule schedule, int stages, int stage,
                                   int64_t micro_batches) {
  const int64_t ahead = InFlight(schedule, stages, stage, micro_batches);
  std::vector<StageAction> actions;
  int64_t forwards = 0;
  for (int64_t backwards = 0; backwards < micro_batches; ++backwards) {
    while (forwards < std::min(micro_batches, backwards + ahead)) {
      actions.push_back({StageAction::kForward, forwards++});
    }
    actions.push_back({StageAction::kBackward, backwards});
  }
  return actions;
}

absl::Status CheckActions(const std::vector<StageAction>& actions, int64_t micro_batches) {
  int64_t forwards = 0;
  int64_t backwards = 0;
  for (size_t i = 0; i < actions.size(); ++i) {
    const bool forward = actions[i].kind == StageAction::kForward;
    int64_t& next = forward ? forwards : backwards;
    const int64_t end = forward ? micro_batches : forwards;
    if (actions[i].micro_batch != next || next >= end) {
      return absl::InvalidArgumentError(
          absl::StrCat("action ", i, ": expected ", forward ? "forward" : "backward",
                       " of micro-batch ", next, forward ? "" : " after its forward", ", of ",
                       micro_batches, ", found that of ", actions[i].micro_batch));
    }
    ++next;
  }
  if (backwards == micro_batches) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("expected backward of ", micro_batches, " micro-batches, found ", backwards));
}

}  // namespace gradsync
