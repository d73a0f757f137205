// What programs that measure a sweep do around their measurements. Only for main files: it prints,
// and catches signals.

#ifndef GRADSYNC_BENCHMARKS_NETWORK_MEASURED_SWEEP_MAIN_H_
#define GRADSYNC_BENCHMARKS_NETWORK_MEASURED_SWEEP_MAIN_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "benchmarks/network/emulated_network.h"
#include "benchmarks/options/placed_job.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"

namespace gradsync {

struct MeasuredSweep {
  std::string program;          // its name in errors
  std::string command;          // of the records
  std::string json;             // their file; empty: none
  std::string head;             // of the table
  std::vector<PlacedJob> jobs;  // in the order in which they are measured
  NetworkLabOptions lab;        // as EmulatedNetworkOptions has it, and the next two
  std::string tcp_rank_binary;
  absl::Duration timeout;

  // Names job `i` in errors.
  std::function<std::string(size_t i)> describe;
  // Measures it, on the network of its bandwidth (null: on this host), prints its lines and adds
  // its records.
  std::function<absl::Status(size_t i, const EmulatedNetwork* network, proto::RunRecords* records)>
      measure;
};

// The usual lines about this machine.
void PrintMachine(const proto::Machine& machine);

// Measures all jobs, those with equal bandwidths on one network, and writes the records: also
// before the first, so that a path that cannot be written is found in time. Blocks. Returns the
// exit code: 0; 1 a result was wrong or a job failed; 2 a job refused its flags, or there is no way
// to emulate a network; 128 + signal when interrupted.
int RunMeasuredSweep(const MeasuredSweep& sweep);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_NETWORK_MEASURED_SWEEP_MAIN_H_
