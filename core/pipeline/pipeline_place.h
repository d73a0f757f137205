#ifndef GRADSYNC_CORE_PIPELINE_PIPELINE_PLACE_H_
#define GRADSYNC_CORE_PIPELINE_PIPELINE_PLACE_H_

#include "core/group/side_channel.h"
#include "core/pipeline/stage_link.h"

namespace gradsync {

// A rank's place among those that train one model in stages. Points at what outlives it.
struct PipelinePlace {
  StageLink* link = nullptr;        // not connected yet
  SideChannel* stages = nullptr;    // of the stages of one pipeline, by stage
  SideChannel* replicas = nullptr;  // of the ranks that have the same stage of other pipelines
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_PIPELINE_PLACE_H_
