#ifndef GRADSYNC_WORKER_DATA_LOADER_THREADS_H_
#define GRADSYNC_WORKER_DATA_LOADER_THREADS_H_

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace gradsync {

// How many threads of a rank prepare its batches: at the beginning, and at most.
struct LoaderThreads {
  int first = 1;
  int most = 1;
};

// As many as are `asked` for (--loader_threads). Where that is 0, on a CPU, whose cores compute,
// one, which LoaderGrowth makes more, up to the rank's share of the host's cores; for a GPU that
// share but one, at first up to eight. At least one. Pure.
inline LoaderThreads ChooseLoaderThreads(int asked, bool on_gpu, int cores, int ranks_on_host) {
  if (asked > 0) return {asked, asked};
  const int share = std::max(1, cores / std::max(1, ranks_on_host));
  if (!on_gpu) return {1, share};
  return {std::clamp(share - 1, 1, 8), std::max(1, share - 1)};
}

// How many batches are prepared ahead: as many as take `prefetch_bytes`, but two at least, one that
// is ready and one that is being filled, and eight at most. Pure.
inline int PrefetchDepth(int64_t batch_bytes, int64_t prefetch_bytes) {
  return static_cast<int>(
      std::clamp<int64_t>(prefetch_bytes / std::max<int64_t>(1, batch_bytes), 2, 8));
}

// Says when one more thread should prepare batches: when the step has waited for more than half a
// percent of the last tenth of a second, and of the last four batches at least. Such a step leaves
// the core idle that it computes on, so there is one to be had. Not thread-safe.
class LoaderGrowth {
 public:
  // To be told of each batch: how long the step waited for it, and how long ago it had the one
  // before.
  bool Grow(absl::Duration waited, absl::Duration since_last) {
    waited_ += waited;
    elapsed_ += since_last;
    if (++batches_ < kBatches || elapsed_ < kWindow) return false;
    const bool starved = waited_ > kBound * elapsed_;
    *this = LoaderGrowth();
    return starved;
  }

 private:
  static constexpr int kBatches = 4;
  static constexpr absl::Duration kWindow = absl::Milliseconds(100);
  static constexpr double kBound = 0.005;

  int batches_ = 0;
  absl::Duration waited_;
  absl::Duration elapsed_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_LOADER_THREADS_H_
