// Stages of a pipeline that are threads of one process.

#ifndef GRADSYNC_CORE_PIPELINE_LOCAL_STAGES_H_
#define GRADSYNC_CORE_PIPELINE_LOCAL_STAGES_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "core/pipeline/stage_channel.h"

namespace gradsync {

// The channels of all stages of one pipeline. A tensor is handed over as it lies, and so not copied.
//
// Thread-safe. Waits for threads of this process alone.
class LocalStages {
 public:
  explicit LocalStages(int count);  // at least 1
  ~LocalStages();

  LocalStages(const LocalStages&) = delete;
  LocalStages& operator=(const LocalStages&) = delete;

  int count() const { return static_cast<int>(channels_.size()); }

  // Lives as long as this object. Its Receive() returns INVALID_ARGUMENT, and so do all others from
  // then on, after two messages with one key.
  StageChannel& channel(int stage);

  // Ends all waits, and all that would follow. The first call counts.
  void Fail(const absl::Status& reason);

 private:
  class Channel;

  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PIPELINE_LOCAL_STAGES_H_
