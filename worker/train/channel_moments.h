#ifndef GRADSYNC_WORKER_TRAIN_CHANNEL_MOMENTS_H_
#define GRADSYNC_WORKER_TRAIN_CHANNEL_MOMENTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/group/side_channel.h"
#include "worker/models/moment_exchange.h"

namespace gradsync {

// Moments of synchronised normalisation over a side channel, the same under every
// topology: backends exchange buckets, whose sizes and order the plan fixes, and moments are a few
// kilobytes that forward itself waits for. Not thread-safe.
class ChannelMoments : public MomentExchange {
 public:
  // Nobody else uses `channel`, which must outlive this object. Each call waits for at most
  // `timeout`, and is a wait in `activity`, which may be null.
  ChannelMoments(SideChannel* channel, absl::Duration timeout, Activity* activity = nullptr)
      : channel_(channel), timeout_(timeout), activity_(activity) {}

  // Errors: those of SideChannel.
  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view bytes) override;

  // The first error. It says more than what LibTorch makes of it.
  const absl::Status& status() const { return status_; }

  int64_t calls() const { return calls_; }
  absl::Duration waited() const { return waited_; }  // in all calls

 private:
  SideChannel* const channel_;
  const absl::Duration timeout_;
  Activity* const activity_;
  absl::Status status_;
  int64_t calls_ = 0;
  absl::Duration waited_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_TRAIN_CHANNEL_MOMENTS_H_
