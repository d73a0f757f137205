// Cores that emulated hosts share.

#ifndef GRADSYNC_SIMULATOR_SHARED_CORES_H_
#define GRADSYNC_SIMULATOR_SHARED_CORES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gradsync {

// The cores of one machine on which all hosts are emulated, and what they spend on each end of a
// message, between its program and its host's interface: the kernel, the library and the addition
// to a sum. Seconds and bytes of payload.
struct CoreCosts {
  int count = 0;  // 0: each host has as many cores as it needs
  double seconds_per_message = 0;
  double seconds_per_byte = 0;

  double Seconds(int64_t bytes) const {
    return seconds_per_message + seconds_per_byte * static_cast<double>(bytes);
  }
};

// Who comes first has the core that is free first, and keeps it until done. Not thread-safe.
class SharedCores {
 public:
  explicit SharedCores(const CoreCosts& costs) : costs_(costs), busy_until_(costs.count) {}

  // When an end of a message that comes at `now`, which never falls, is done. Without cores that
  // are shared, and without bytes, at once.
  double Done(double now, int64_t bytes) {
    if (busy_until_.empty() || bytes == 0) return now;
    double& core = *std::min_element(busy_until_.begin(), busy_until_.end());
    core = std::max(core, now) + costs_.Seconds(bytes);
    return core;
  }

 private:
  const CoreCosts costs_;
  std::vector<double> busy_until_;
};

}  // namespace gradsync

#endif  // GRADSYNC_SIMULATOR_SHARED_CORES_H_
