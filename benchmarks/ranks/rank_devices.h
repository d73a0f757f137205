// What has the buckets of a rank that is measured.

#ifndef GRADSYNC_BENCHMARKS_RANKS_RANK_DEVICES_H_
#define GRADSYNC_BENCHMARKS_RANKS_RANK_DEVICES_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "worker/sync_factory.h"

namespace gradsync {

struct RankDevices {
  std::string device = "cpu";  // as //worker has --device
  int local_rank = -1;         // below 0: not known
  int world_size = 1;
  // The value of a variable of the environment, if it is set: what NCCL is told there is recorded.
  std::function<absl::optional<std::string>(absl::string_view name)> lookup;
};

// Opens the GPU, unless the device is the CPU, and NCCL where that is the link, for `sync`.
// Errors: those of OpenDevice(), CheckNcclDevice() and OpenNccl().
absl::Status OpenRankDevices(const RankDevices& devices, SyncOptions* sync);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_RANK_DEVICES_H_
