// What has the buckets of a rank that is measured, by flags that it has from //worker: --device and
// --local_rank. Only for main files, since flags are global.

#ifndef GRADSYNC_BENCHMARKS_RANKS_RANK_DEVICE_MAIN_H_
#define GRADSYNC_BENCHMARKS_RANKS_RANK_DEVICE_MAIN_H_

#include "absl/status/status.h"
#include "worker/sync_factory.h"

namespace gradsync {

// Opens the GPU, unless the device is the CPU, and NCCL where that is the link, for `sync`. What
// NCCL is told by the environment is recorded.
// Errors: those of OpenDevice(), CheckNcclDevice() and OpenNccl().
absl::Status OpenDeviceFromFlags(int world_size, SyncOptions* sync);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RANKS_RANK_DEVICE_MAIN_H_
