// A trace of a few steps, for people and for tools/trace_check.

#ifndef GRADSYNC_WORKER_TRAIN_KINETO_TRACE_H_
#define GRADSYNC_WORKER_TRAIN_KINETO_TRACE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"

namespace gradsync {

struct TraceOptions {
  std::string path;        // of the file; empty: no trace
  int64_t first_step = 0;  // counted from 1
  int64_t steps = 0;

  bool wanted() const { return !path.empty(); }
};

// From the texts of --trace, a path in which "{rank}" stands for the rank's number, and of
// --trace_steps, FIRST:COUNT. An empty path is no trace.
// Errors: INVALID_ARGUMENT naming the flag.
absl::StatusOr<TraceOptions> ParseTrace(absl::string_view path, absl::string_view steps, int rank);

// Records steps with LibTorch's own profiler, Kineto, and writes them as Chrome's trace JSON
// (chrome://tracing, Perfetto): LibTorch's operations on the host, and, where the GPU is CUDA's,
// the kernels and copies of all streams of this process and the calls of CUDA of all its threads.
//
// The recorded steps begin with an idle GPU, and the recording ends when the GPU has done them; it
// is waited for by asking, so that no call of CUDA that waits is in the trace but the steps' own.
// Outside the recorded steps nothing is done. Not thread-safe: one thread makes all calls, the one
// that runs the steps, and a process has one of these.
//
// Errors of BeforeStep() and AfterStep(): those of GpuApi; DEADLINE_EXCEEDED; INTERNAL when
// LibTorch throws; UNAVAILABLE when the file was not written.
class KinetoTrace {
 public:
  // Records nothing for a moment, to see that it can. `gpu` may be null. `timeout` is how long the
  // GPU may take for what is queued.
  // Errors: INVALID_ARGUMENT naming --trace where this LibTorch has no Kineto, or the file cannot
  // be written.
  static absl::StatusOr<std::unique_ptr<KinetoTrace>> Create(TraceOptions options,
                                                             std::shared_ptr<GpuApi> gpu,
                                                             absl::Duration timeout);
  ~KinetoTrace();
  KinetoTrace(const KinetoTrace&) = delete;
  KinetoTrace& operator=(const KinetoTrace&) = delete;

  // Starts the recording if `step` is the first to be recorded.
  absl::Status BeforeStep(int64_t step);

  // Ends it and writes the file if `step` was the last.
  absl::Status AfterStep(int64_t step);

 private:
  KinetoTrace(TraceOptions options, std::shared_ptr<GpuApi> gpu, absl::Duration timeout)
      : options_(std::move(options)), gpu_(std::move(gpu)), timeout_(timeout) {}

  absl::Status Start();
  absl::Status StopAndWrite();
  absl::Status AwaitIdleGpu();

  const TraceOptions options_;
  const std::shared_ptr<GpuApi> gpu_;
  const absl::Duration timeout_;
  ScopedEvent idle_;
  bool recording_ = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_KINETO_TRACE_H_
