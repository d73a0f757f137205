#ifndef GRADSYNC_WORKER_TRAIN_SLICE_CHANNEL_H_
#define GRADSYNC_WORKER_TRAIN_SLICE_CHANNEL_H_

#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"
#include "worker/models/slices.h"
#include "worker/pipeline/slice_link.h"

namespace gradsync {

// The exchanges of a sliced model over the link between its slices. Not thread-safe.
class SliceChannel : public SliceExchange {
 public:
  // `link` is connected and outlives this object. Each call waits for at most `timeout`, and is a
  // wait in `activity`, which may be null.
  SliceChannel(SliceLink* link, absl::Duration timeout, Activity* activity)
      : link_(link), timeout_(timeout), activity_(activity) {}

  int slice() const override { return link_->slice(); }
  int slices() const override { return link_->slices(); }

  // Errors: those of SliceLink.
  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own) override {
    return Run([&](Deadline deadline) { return link_->Sum(own, deadline); });
  }
  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own) override {
    return Run([&](Deadline deadline) { return link_->SumPart(own, deadline); });
  }
  absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own) override {
    return Run([&](Deadline deadline) { return link_->Gather(own, deadline); });
  }

  // The first error. It says more than what LibTorch makes of it.
  const absl::Status& status() const { return status_; }

  absl::Duration waited() const { return waited_; }  // in all calls

 private:
  template <typename Call>
  auto Run(const Call& call) -> decltype(call(Deadline::Never())) {
    if (!status_.ok()) return status_;
    const Activity::Wait wait(activity_);
    const MonotonicTime start = MonotonicTime::Now();
    auto result = call(Deadline::In(timeout_));
    waited_ += MonotonicTime::Now() - start;
    status_ = result.status();
    return result;
  }

  SliceLink* const link_;
  const absl::Duration timeout_;
  Activity* const activity_;
  absl::Status status_;
  absl::Duration waited_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_SLICE_CHANNEL_H_
