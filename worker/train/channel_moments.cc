#include "worker/train/channel_moments.h"

#include "core/base/deadline.h"
#include "core/base/monotonic_time.h"

namespace gradsync {

absl::StatusOr<std::vector<std::string>> ChannelMoments::AllGather(absl::string_view bytes) {
  const Activity::Wait wait(activity_);
  const MonotonicTime start = MonotonicTime::Now();
  absl::StatusOr<std::vector<std::string>> all = channel_->AllGather(bytes, Deadline::In(timeout_));
  waited_ += MonotonicTime::Now() - start;
  ++calls_;
  if (!all.ok() && status_.ok()) status_ = all.status();
  return all;
}

}  // namespace gradsync
