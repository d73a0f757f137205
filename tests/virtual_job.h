// A whole job in virtual time: its workers, its servers, its store, and one thing that goes wrong.

#ifndef GRADSYNC_TESTS_VIRTUAL_JOB_H_
#define GRADSYNC_TESTS_VIRTUAL_JOB_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "core/plan/kinds.h"

namespace gradsync {

enum class VirtualFault {
  kNone,
  kKill,     // a process dies
  kStop,     // a process is stopped for good
  kStuck,    // a worker's training thread stands still
  kCut,      // two processes do not reach each other any more
  kBreak,    // a stream is reset
  kSlow,     // for a while messages take long; nothing may come of it
  kSuspend,  // all processes are stopped for a while; likewise
  kPause,    // one process is stopped for less than the failure timeout; likewise
};

std::string VirtualFaultName(VirtualFault fault);

struct VirtualJobOptions {
  uint64_t seed = 0;  // of everything below, and of the order of events
  bool verbose = false;

  int ranks = 2;
  int servers = 0;  // 0: a ring
  UpdateSite site = UpdateSite::kWorker;
  Consistency consistency;
  double max_norm = 0;
  int connections = 1;
  int lead = 2;
  int steps = 3;
  absl::Duration failure_timeout = absl::Seconds(10);
  absl::Duration timeout = absl::Seconds(60);

  VirtualFault fault = VirtualFault::kNone;
  int victim = 0;        // a process: ranks first, then servers
  int other = 1;         // the other end of a cut
  int64_t fault_at = 0;  // changes of threads before it
};

// Draws a job.
VirtualJobOptions DrawVirtualJob(uint64_t seed);
std::string DescribeVirtualJob(const VirtualJobOptions& options);

struct VirtualJobResult {
  // What is wrong with the code, or nothing: a hang, wrong bits, an innocent who is blamed, somebody
  // who was not told.
  std::string complaint;
  bool fault_happened = false;
  bool in_training = false;    // all ranks were at their steps when it happened
  absl::Duration noticed;      // after it, the last survivor had ended
  int named = 0, unnamed = 0;  // survivors that failed, and their errors name a process or none
  int64_t switches = 0;        // of threads
  uint64_t digest = 0;         // equal for equal runs
};

VirtualJobResult RunVirtualJob(const VirtualJobOptions& options);

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_VIRTUAL_JOB_H_
