#ifndef GRADSYNC_CORE_SYNC_STALENESS_H_
#define GRADSYNC_CORE_SYNC_STALENESS_H_

#include <cstdint>
#include <vector>

namespace gradsync {

// How old the parameters were that this rank's steps ended with (docs/consistency.md):
// `histogram[s]` steps were given parameters that lacked s steps of the slowest worker, the most
// that any part of them lacked. The last element is above 0; empty where every step waits for all.
struct Staleness {
  std::vector<int64_t> histogram;

  void Count(int64_t missed) {
    if (missed >= static_cast<int64_t>(histogram.size())) histogram.resize(missed + 1);
    ++histogram[missed];
  }

  int64_t max() const { return histogram.empty() ? 0 : static_cast<int64_t>(histogram.size()) - 1; }
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_SYNC_STALENESS_H_
