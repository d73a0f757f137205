// What this process may take of its host, memory, cores, threads and open files, as the kernel and the
// control groups (cgroups, versions 1 and 2) of a container, a batch system or a service manager bound
// them; and what it has taken.

#ifndef GRADSYNC_CORE_BASE_PROCESS_RESOURCES_H_
#define GRADSYNC_CORE_BASE_PROCESS_RESOURCES_H_

#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

struct MemoryLimit {
  uint64_t bytes = 0;  // that can still be taken
  // What bounds it: "the host", "the memory limit of control group /a/b".
  std::string source;
};

// Bytes that this process can take without the kernel taking them from a process: the smallest of
// what the host has to give and what is left below the limit of each control group that this process
// is in. Files that the kernel only caches count as free. To be asked before much memory is taken:
// the kernel would not refuse it, but kill processes until there is room. Reads some files of /proc
// and /sys; thread-safe.
//
// `root` is put in front of /proc and /sys: for tests.
MemoryLimit AvailableMemory(const std::string& root = "");

// Bytes of addresses that this process may still map, which some batch systems limit in place of memory
// (ulimit -v; h_vmem of Grid Engine). Thread-safe.
MemoryLimit AvailableAddresses();

// Cores of the host, but no more than the quota of this process's control groups is worth, rounded
// up. At least 1. For what all processes of the host do together. Thread-safe. `root` as above.
int HostCores(const std::string& root = "");

// Of those, how many this process may run on: at most as many as its affinity mask has (taskset,
// Slurm, cpusets). At least 1. For how many threads this process should start. Thread-safe.
int AvailableCores();

// Fills `bytes` bytes at `memory` with zeros, in pieces, and looks before each piece whether the rest
// is there: of several processes that take memory at the same time, each sees what the others have
// taken so far. `what` begins the message: "buckets".
// Errors: RESOURCE_EXHAUSTED naming how much was to be taken, how much there was and what bounds it.
absl::Status TakeMemory(absl::string_view what, char* memory, size_t bytes);

// What bounds the number of threads of this process, each bound with its value: "100 of control group
// /a (pids.max), 512 of this user (ulimit -u)". Thread-safe. `root` as above.
std::string ThreadLimits(const std::string& root = "");

// OK where `bytes` are available now. Errors: as TakeMemory().
absl::Status CheckMemory(absl::string_view what, uint64_t bytes);

// OK where `bytes` can be mapped beside what is mapped. Errors: as TakeMemory().
absl::Status CheckAddresses(absl::string_view what, uint64_t bytes);

// Lets this process have as many open files as the system lets it ask for: each connection is one,
// and a gRPC server that has once run out of them never accepts again (CVE-2023-4785). For main
// files. Where the limit cannot be raised, it stays.
void RaiseFileLimit();

// Whether this process can open another file or socket now. Without, a server takes no connection,
// while its kernel still does. Thread-safe.
bool HasFreeDescriptor();

// Makes malloc keep what is freed instead of giving it back to the kernel and asking for it again, page fault by page fault,
// in every step: a training step frees and allocates the same hundreds of megabytes over and over. Measured on ResNet-18,
// batch 128, two threads: 172 ms per step before, 127 ms after, and a quarter less CPU time. The price is that the process
// stays as large as it once was. For glibc; elsewhere it does nothing. Call it first thing in main().
void KeepFreedMemory();

// User and system time of this process so far, all threads. Thread-safe.
inline absl::Duration ProcessCpuTime() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
}

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_PROCESS_RESOURCES_H_
