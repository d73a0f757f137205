#ifndef GRADSYNC_WORKER_METRICS_H_
#define GRADSYNC_WORKER_METRICS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "core/sync/gradient_sync.h"
#include "worker/job_options.h"
#include "worker/pipeline/stage_link.h"
#include "worker/train/trainer.h"

namespace gradsync {

// Writes what this worker measured, and over which backend, as `sync` says it, to `path`, as the
// JSON form of proto::WorkerMetrics. `place` is a stage's, else null. The file is there whole or not at all. Errors: UNAVAILABLE or
// PERMISSION_DENIED naming the path.
absl::Status WriteWorkerMetrics(const JobOptions& options, const GradientSync& sync,
                                const Trainer& trainer, const TrainingResult& result,
                                const PipelinePlace* place, int64_t side_channel_bytes,
                                const std::string& path);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_METRICS_H_
