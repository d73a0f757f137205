#include "gradsync/ddp/captured_step.h"

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {

absl::Status CapturedStep::Capture(size_t buckets,
                                   const std::function<absl::Status()>& forward_backward) {
  graph_ = ScopedGraph();
  GS_ASSIGN_OR_RETURN(launch_stream_, ScopedStream::Create(gpu_));
  ready_.clear();
  for (size_t b = 0; b < buckets; ++b) {
    GS_ASSIGN_OR_RETURN(ready_.emplace_back(), ScopedEvent::Create(gpu_));
  }
  recorded_buckets_ = 0;
  recorded_ = absl::OkStatus();
  GS_ASSIGN_OR_RETURN(graph_, ScopedGraph::Capture(gpu_, [&]() -> absl::Status {
                        GS_RETURN_IF_ERROR(forward_backward());
                        GS_RETURN_IF_ERROR(recorded_);
                        if (recorded_buckets_ == ready_.size()) return absl::OkStatus();
                        return absl::InternalError(
                            absl::StrCat("a captured step: expected gradients for ", ready_.size(),
                                         " buckets, found them for ", recorded_buckets_));
                      }));
  return absl::OkStatus();
}

void CapturedStep::Ready(int bucket) {
  absl::Status status = gpu_->RecordInGraph(ready_[bucket].get(), gpu_->ComputeStream());
  if (recorded_.ok()) recorded_ = std::move(status);
  ++recorded_buckets_;
}

absl::Status CapturedStep::Replay(const std::function<void(int bucket)>& launch) {
  GS_RETURN_IF_ERROR(gpu_->LaunchGraph(graph_.get()));
  for (size_t b = 0; b < ready_.size(); ++b) {
    GS_RETURN_IF_ERROR(gpu_->StreamWait(launch_stream_.get(), ready_[b].get()));
    gpu_->WithComputeStream(launch_stream_.get(), [&] { launch(static_cast<int>(b)); });
  }
  return absl::OkStatus();
}

}  // namespace gradsync
