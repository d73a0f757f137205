#ifndef GRADSYNC_DATA_LOADER_THREADS_H_
#define GRADSYNC_DATA_LOADER_THREADS_H_

#include <algorithm>

namespace gradsync {

// How many threads of a rank prepare its batches (--loader_threads): `asked`, and where that is 0
// one on a CPU, whose cores compute, and for a GPU the rank's share of the host's cores but one, up
// to eight, at least one. Pure.
inline int ChooseLoaderThreads(int asked, bool on_gpu, int cores, int ranks_on_host) {
  if (asked > 0) return asked;
  if (!on_gpu) return 1;
  return std::clamp(cores / std::max(1, ranks_on_host) - 1, 1, 8);
}

}  // namespace gradsync

#endif  // GRADSYNC_DATA_LOADER_THREADS_H_
