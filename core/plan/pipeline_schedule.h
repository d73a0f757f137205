// Who computes what when, in a pipeline: pure arithmetic, of which every stage knows all.
//
// A model is cut into `stages` that follow one another, and a mini-batch into micro-batches. A
// stage computes forward of a micro-batch once the stage before has sent its input, and backward
// once the stage behind has sent the gradient. Whatever the schedule, a stage takes micro-batches
// 0, 1, ... in this order forward, and in this order backward: gradients are then added up as one
// process adds them that takes the micro-batches one after the other, and have its bits.
//
//   naive   forward and backward of one micro-batch before the next: one stage computes at a time
//   gpipe   all forwards, then all backwards (GPipe, arXiv 1811.06965): m micro-batches in flight
//   1f1b    backward as soon as there is a gradient, and forwards ahead of it meanwhile, at most
//           InFlight() of them: about one of each in turns (PipeDream-Flush, arXiv 2006.09503)
//
// Only under 1f1b a stage has a choice, and takes what has come, the gradient of two. A fixed order
// of turns is often described; with it a stage waits for the one while it has the other, where links
// are slow and an inner stage's interface carries activations one way and gradients the other: three
// stages and more are then slower than under gpipe.
//
// Stages 0 to 2 and m = 4, F and B forward and backward, with transfers that take no time:
//
//   naive   F0       B0 F1       B1 ...
//              F0 B0       F1 B1
//   gpipe   F0 F1 F2 F3             B0 B1 B2 B3
//              F0 F1 F2 F3       B0 B1 B2 B3
//                 F0 F1 F2 F3 B0 B1 B2 B3
//   1f1b    F0 F1 F2 F3       B0 B1    B2    B3
//              F0 F1 F2 F3 B0 B1    B2    B3
//                 F0 B0 F1 B1 F2 B2 F3 B3

#ifndef GRADSYNC_CORE_PLAN_PIPELINE_SCHEDULE_H_
#define GRADSYNC_CORE_PLAN_PIPELINE_SCHEDULE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

enum class PipelineSchedule { kNaive, kGpipe, kOneForwardOneBackward };

// "naive", "gpipe", "1f1b".
absl::string_view PipelineScheduleName(PipelineSchedule schedule);

// Errors: INVALID_ARGUMENT naming --pipeline_schedule for another name.
absl::StatusOr<PipelineSchedule> ParsePipelineSchedule(absl::string_view name);

struct StageAction {
  enum Kind { kForward, kBackward };
  Kind kind = kForward;
  int64_t micro_batch = 0;

  friend bool operator==(StageAction a, StageAction b) {
    return a.kind == b.kind && a.micro_batch == b.micro_batch;
  }
};

// The most micro-batches of which a stage has computed forward and not yet backward: so many inputs
// and graphs it holds. Under 1f1b stage s of p has up to 3(p-s)-2: with T the time that the slowest
// stage, or the busiest link, takes for a micro-batch in both directions, a micro-batch comes back
// after at most (p-s)T in stages and 2(p-s-1)T on links. With p-s, as the schedule is often
// described, a stage waits for that before each forward, and where messages take time every step is
// bound by it; with so many the next micro-batches are on the links meanwhile.
int64_t InFlight(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches);

// How far a stage is in a step, and what it may do next. A value; thread-compatible.
class StageOrder {
 public:
  // Of `stage`, 0 to stages-1, in a step of `micro_batches`, at least 1.
  StageOrder(PipelineSchedule schedule, int stages, int stage, int64_t micro_batches);

  bool done() const { return backwards_ == micro_batches_; }

  // What it does next of each kind.
  StageAction forward() const { return {StageAction::kForward, forwards_}; }
  StageAction backward() const { return {StageAction::kBackward, backwards_}; }

  // Whether it may, by the schedule. One of them at least, until it is done.
  bool may_forward() const;
  bool may_backward() const;

  // What it does, where the input of forward() is here or not, and the gradient of backward();
  // nothing when it has to wait for one that is not.
  absl::optional<StageAction> Next(bool input_here, bool gradient_here) const;

  // It has done what was next of this kind.
  void Did(StageAction::Kind kind) { ++(kind == StageAction::kForward ? forwards_ : backwards_); }

 private:
  PipelineSchedule schedule_;
  int64_t micro_batches_;
  int64_t in_flight_;
  int64_t forwards_ = 0;
  int64_t backwards_ = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PIPELINE_SCHEDULE_H_
