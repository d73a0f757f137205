// What a measurement must say about where it was made.

#ifndef GRADSYNC_BENCHMARKS_RECORDS_MACHINE_INFO_H_
#define GRADSYNC_BENCHMARKS_RECORDS_MACHINE_INFO_H_

#include <string>

#include "absl/time/time.h"
#include "proto/run_record.pb.h"

namespace gradsync {

// This machine, this build and now: processor, cores that this process may use, memory, system,
// compiler, build mode, versions of the libraries that were compiled against, and the commit of
// `checkout`, a folder in it, as git says; "" for none. What cannot be found out stays empty, but for
// the commit, which is "unknown". Has neither names nor addresses of the machine. Thread-safe; waits
// for git.
proto::Machine DescribeMachine(const std::string& checkout = "");

// "AMD EPYC, 2 cores, 23.4 GiB; Debian GNU/Linux 12 (bookworm), Linux 6.1.0; GCC 12.2.0, -c opt;
// ...", on one line.
std::string FormatMachine(const proto::Machine& machine);

// "" for an optimised build, otherwise a line that begins with WARNING.
std::string BuildModeWarning(const proto::Machine& machine);

// Blocks for `interval` and returns how many cores of the machine were busy in it, whoever used
// them; call it before a measurement, when this process does nothing. 0 when the system does not
// say.
double BusyCores(absl::Duration interval);

// "" when next to nothing is busy, otherwise a line that begins with WARNING.
std::string BusyWarning(double busy_cores);

// How much of this machine's cores was used since this object was made, by whomever, the kernel's
// work for network interfaces included. In steps of some 10 ms. Thread-safe; does not block.
class MachineLoad {
 public:
  MachineLoad();

  double BusyCoreSeconds() const;
  double CoreSeconds() const;  // all there were, idle ones included; 0 when the system does not say

 private:
  struct Times {
    double busy = 0;
    double all = 0;
  };
  static Times Read();

  const Times start_;
};

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_RECORDS_MACHINE_INFO_H_
