// A job under any consistency whose result and whose servers' logs are checked in full.

#ifndef GRADSYNC_TESTS_STALENESS_JOB_H_
#define GRADSYNC_TESTS_STALENESS_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/links/frame_stream.h"

namespace gradsync {

struct StalenessJob {
  std::string consistency = "asp";
  std::vector<int64_t> steps;  // by rank
  int servers = 1;
  int phases = 1;  // times that all do their steps and then settle
  uint64_t seed = 0;
  int connections = 2;
  int lead = 8;
  std::shared_ptr<StreamLink> link;
  // Called by each rank before each of its steps; makes ranks slow.
  std::function<void(int rank, int64_t step)> pause;
};

struct StalenessResult {
  int64_t max_staleness = 0;       // in the servers' logs
  int64_t waits = 0;               // answers that were not due at once
  std::vector<int64_t> histogram;  // as the workers have it, all ranks
};

// Trains a small plan with SGD of rate 1 and gradients that are small whole multiples of n, so that
// sums are exact in any order. Expects (gtest) that
//   - all ranks end each phase with the parameters that all gradients, each applied exactly once,
//     make;
//   - every server's log keeps the rules of EventCheck, and has every push;
//   - no rank does a step while one that still trains has begun fewer than the bound allows, seen
//     from the workers alone;
//   - the workers' histograms agree with the logs.
StalenessResult RunStalenessJob(const StalenessJob& job);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_STALENESS_JOB_H_
