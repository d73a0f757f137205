// Who takes part in //benchmarks:peers: our topologies, the libraries that people use today, and
// the ceilings.

#ifndef GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_CONTESTANTS_H_
#define GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_CONTESTANTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/plan/job_spec.h"

namespace gradsync {

enum class PeerRole {
  kOurs,
  kLibrary,  // does the same job, but for what its note says; the best of these is the "best peer"
  kCeiling,  // moves the bytes and adds nothing up
};

// How its processes are started.
enum class PeerLaunch {
  kSyncBench,   // sync_bench_rank and servers, by RunLocalJob()
  kGrpcStream,  // grpc_stream_rank, likewise
  kProcesses,   // a program per rank, built with this one
  kMpi,         // a program that tools/setup --peers built, by the library's own mpiexec
  kStanding,    // once, and then they wait for their turns (peer_job.h)
};

// One way to run a library. All are tried before the measurement and the best is kept, so that a
// library is compared at its best on this machine, for this size and number of ranks.
struct PeerSetting {
  std::string variant;  // the rank program's --variant; bytes of a message for grpc_stream
  std::vector<std::string> environment;  // NAME=value
  std::vector<std::string> launcher;     // arguments of mpiexec
};

struct Contestant {
  std::string name;              // unique: "ring/shm", "gloo", "grpc_stream/ps"
  std::string library;           // of the record: "gradsync", "gloo", "mpich_window", "grpc_stream"
  absl::optional<JobSpec> spec;  // of topology and link; none where the library decides
  PeerRole role = PeerRole::kLibrary;
  PeerLaunch launch = PeerLaunch::kProcesses;
  std::vector<PeerSetting> settings;  // at least one
  std::string note;                   // how its job differs from that of the others; or empty

  // As many as ranks.
  bool with_servers() const { return spec.has_value() && spec->topology == Topology::kPs; }
};

// "out_of_place, I_MPI_FABRICS=shm"; what a row of the report says.
std::string DescribeSetting(const PeerSetting& setting);

// The contestants called `names`, all when there are none, in their usual order. `ranks` and
// `cores` decide on settings: with more ranks than cores a library that would spin must not.
// Errors: INVALID_ARGUMENT naming the flag --contestants.
absl::StatusOr<std::vector<Contestant>> SelectContestants(const std::vector<std::string>& names,
                                                          int ranks, int cores);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_PEER_LIBRARIES_PEER_CONTESTANTS_H_
