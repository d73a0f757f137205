#ifndef GRADSYNC_GRADSYNC_DDP_CAPTURED_STEP_H_
#define GRADSYNC_GRADSYNC_DDP_CAPTURED_STEP_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/gpu/gpu_api.h"
#include "core/gpu/gpu_resources.h"

namespace gradsync {

// Forward and backward of a step as one graph, which also says when each bucket's gradients are
// complete, so that exchanges begin while the rest of backward runs, as they do without a graph.
//
// A backend takes a bucket in the order of the stream that is current when it is launched. In a
// replay the host launches all of them right after the graph; so it does that from another stream
// than the graph's, which waits for nothing but the buckets' events in the graph, one after the
// other.
//
// Not thread-safe; Ready() may come from autograd's threads while Capture() runs. Errors: those of
// GpuApi.
class CapturedStep {
 public:
  explicit CapturedStep(std::shared_ptr<GpuApi> gpu) : gpu_(std::move(gpu)) {}

  // Captures what `forward_backward` queues, which calls Ready() for each of so many buckets, once
  // and in order. Errors: also INTERNAL when it does not.
  absl::Status Capture(size_t buckets, const std::function<absl::Status()>& forward_backward);

  // Whether there is a graph: from a successful Capture() to the next call.
  bool captured() const { return graph_.get() != nullptr; }

  // The gradients of the next bucket were queued on the compute stream of the calling thread.
  void Ready(int bucket);

  // Queues the graph on the compute stream and calls `launch` for each bucket in order, with a
  // compute stream that reaches the bucket's gradients when they are complete.
  absl::Status Replay(const std::function<void(int bucket)>& launch);

 private:
  const std::shared_ptr<GpuApi> gpu_;
  ScopedStream launch_stream_;
  std::vector<ScopedEvent> ready_;  // by bucket
  size_t recorded_buckets_ = 0;     // whose events are in the graph
  absl::Status recorded_;
  ScopedGraph graph_;  // last: uses the events
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_CAPTURED_STEP_H_
