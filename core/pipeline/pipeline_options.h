#ifndef GRADSYNC_CORE_PIPELINE_PIPELINE_OPTIONS_H_
#define GRADSYNC_CORE_PIPELINE_PIPELINE_OPTIONS_H_

#include <string>

#include "core/group/mesh.h"
#include "core/plan/pipeline_schedule.h"

namespace gradsync {

// How a job is cut.
struct PipelineOptions {
  Mesh mesh;  // looked at only where it cuts the model
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::string split = "auto";  // or as ParseSplit() takes it
  // With slices (MeshDimension::kTensor): what passes between layers is cut along the sequence.
  bool split_sequence = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_PIPELINE_OPTIONS_H_
