// A job of a sweep: what kind it is, how many processes it has, and on which hosts and GPUs they
// run.
//
// Pure functions, thread-safe.

#ifndef GRADSYNC_BENCHMARKS_OPTIONS_PLACED_JOB_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_PLACED_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/plan/job_spec.h"
#include "core/plan/kinds.h"

namespace gradsync {

// How a model is spread over ranks, and replicas over threads, as records have it.
struct Arrangement {
  std::string mesh;       // "data=2,pipeline=2"; empty: all ranks along data
  std::string schedule;   // "gpipe"; empty without stages
  int micro_batches = 0;  // of a step; 0 without a mesh
  int data_parallel = 1;  // replicas in each process

  bool operator==(const Arrangement& other) const;
};

// "data=2,pipeline=2, gpipe, 4 micro-batches", "2 replicas in each"; empty for what most jobs have.
std::string Describe(const Arrangement& arrangement);

struct PlacedJob {
  JobSpec spec;
  int workers = 1;

  // What --servers says: with kMixed the machines that servers have for themselves, and one more
  // server runs beside each worker; otherwise all servers, where owners are ranks the first so many
  // ranks; 0 without servers.
  int servers = 0;
  Placement placement = Placement::kNone;  // of servers
  std::string bandwidth;                   // of emulated links (BandwidthName()); empty: none
  int zero = 0;  // what owners keep for all, as --zero has it (core/plan/sharding.h)
  Arrangement arrangement;
};

// Whether both are one configuration. Connections do not matter.
bool SameJob(const PlacedJob& a, const PlacedJob& b);

// "ring over grpc, update at owner, bf16, ssp:2", without what is the default.
std::string DescribeKind(const JobSpec& spec);

// "2 servers colocated" as sweeps list it: ", servers 2 colocated"; nothing without servers.
std::string DescribeServers(const PlacedJob& job);

// Sets how many servers and owners `job->spec` has by its placement. Errors: INVALID_ARGUMENT
// naming --placement where it does not fit: colocated servers are at most as many as workers; mixed
// ones have dedicated machines, fewer than workers (with as many, the servers beside workers would
// own nothing, and it would be dedicated placement); those of CheckJobSpec() and CheckZero().
absl::Status CheckJob(PlacedJob* job);

// The following expect that it fits.

// Processes that are servers: none where owners are ranks.
int ServerProcesses(const PlacedJob& job);

// The host of each worker by rank and then of each server, counted from 0 without gaps. Servers
// that are ranks count too, as if they ran beside them.
std::vector<int> HostsOf(const PlacedJob& job);

// How many hosts that takes.
int HostCount(const PlacedJob& job);

// PlanOptions::chunk_bytes of a job of which so many were asked for, 0 for the default: emulated
// hosts have that of hosts (kNetworkChunks of core/plan/stripes.h), as a training job finds out by
// itself.
int64_t ChunkBytesOf(const PlacedJob& job, int64_t asked);

// The weights that a job chooses by itself (gradsync/join/server_weights.h); empty without servers.
std::vector<double> PlacedWeights(const PlacedJob& job);

// How many times as long `workers` compute, each with so many threads, when they take turns on
// `cores`; 0 cores: each has as many as it wants.
double TurnsOnCores(int workers, int threads, int cores);

// Several ranks on one GPU, which NCCL refuses: a test mode (docs/internals/nccl.md, "Two ranks on one GPU").

// How many GPUs so many ranks of one host have, or how many come before that of rank `ranks`, when
// every `ranks_per_gpu` share one.
inline int GpusOf(int ranks, int ranks_per_gpu) {
  return (ranks + ranks_per_gpu - 1) / ranks_per_gpu;
}
inline int GpuOf(int rank, int ranks_per_gpu) { return rank / ranks_per_gpu; }

// Errors: INVALID_ARGUMENT naming --ranks_per_gpu for less than 1, and for more where `device`, a
// resolved one, does not give each rank the GPU of its number ("cuda").
absl::Status CheckRanksPerGpu(int ranks_per_gpu, const std::string& device);

// What a process of this rank needs in its environment, NAME=value each, so that NCCL takes ranks
// that share a GPU for ranks of different hosts and talks over sockets of the loopback.
std::vector<std::string> SharedGpuEnvironment(int rank);

// Why times over NCCL must not be used then; a line of a report, and Run::invalid.
std::string SharedGpuNote(int ranks_per_gpu);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_PLACED_JOB_H_
