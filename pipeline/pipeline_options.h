#ifndef GRADSYNC_PIPELINE_PIPELINE_OPTIONS_H_
#define GRADSYNC_PIPELINE_PIPELINE_OPTIONS_H_

#include <string>

#include "group/mesh.h"
#include "plan/pipeline_schedule.h"

namespace gradsync {

// How a job is cut.
struct PipelineOptions {
  Mesh mesh;  // looked at only where it has stages
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::string split = "auto";  // or as ParseSplit() takes it
};

}  // namespace gradsync

#endif  // GRADSYNC_PIPELINE_PIPELINE_OPTIONS_H_
