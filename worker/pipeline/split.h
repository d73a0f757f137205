// Where a model, a list of blocks, is cut into stages.

#ifndef GRADSYNC_WORKER_PIPELINE_SPLIT_H_
#define GRADSYNC_WORKER_PIPELINE_SPLIT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/group/mesh.h"
#include "core/plan/pipeline_schedule.h"

namespace gradsync {

// Blocks [first, end) of a model.
struct BlockRange {
  int first = 0;
  int end = 0;

  friend bool operator==(BlockRange a, BlockRange b) {
    return a.first == b.first && a.end == b.end;
  }
};

// Stages by number: each begins where the one before ends, and has at least one block.
using StageSplit = std::vector<BlockRange>;

// "4,7": the blocks before which stages 1, 2, ... begin, numbered as --describe_model lists them.
// Errors: INVALID_ARGUMENT naming --split unless they are stages-1 numbers that ascend and leave
// each stage at least one of `blocks`.
absl::StatusOr<StageSplit> ParseSplit(absl::string_view text, int blocks, int stages);

// "4,7", as ParseSplit() takes it; empty for one stage.
std::string SplitToString(const StageSplit& split);

// The cut whose slowest stage takes the least, by the time of each block; of several the one whose
// earlier stages are shorter. Errors: INVALID_ARGUMENT naming --mesh for more stages than blocks.
absl::StatusOr<StageSplit> BalanceBlocks(const std::vector<double>& times, int stages);

// How a job is cut.
struct PipelineOptions {
  Mesh mesh;  // looked at only where it cuts the model
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::string split = "auto";  // or as ParseSplit() takes it
  // With slices (MeshDimension::kTensor): what passes between layers is cut along the sequence.
  bool split_sequence = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_SPLIT_H_
