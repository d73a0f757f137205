// What kind of a job runs: its topology, its link, and what goes with them. The one list of
// backends, and the one place that says what goes together.
//
// A new backend is an entry of Backend, a row of kBackends, a case of CreateGradientSync()
// (gradsync/join/sync_factory.cc), which does not compile without it, and a line of
// tests/factory_conformance_test.cc.

#ifndef GRADSYNC_CORE_PLAN_JOB_SPEC_H_
#define GRADSYNC_CORE_PLAN_JOB_SPEC_H_

#include <array>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/codec.h"
#include "core/plan/kinds.h"

namespace gradsync {

enum class Topology { kLocal, kPs, kRing };

// kAuto is chosen when hosts are known; kNone is what a job without peers has.
enum class Link { kAuto, kNone, kGrpc, kTcp, kShm, kGloo, kNccl, kCudaIpc };

// What kAuto stands for where hosts are not known, or are several.
constexpr Link kLinkBetweenHosts = Link::kTcp;

// A topology over a link: what a GradientSync is.
enum class Backend {
  kLocal,
  kRingOverGrpc,
  kRingOverTcp,
  kRingOverShm,
  kRingOverGloo,
  kRingOverNccl,
  kRingOverCudaIpc,
  kPsOverGrpc,
  kPsOverTcp,
  kPsOverShm,
  kPsOverNccl,
  kPsOverCudaIpc,
};

// What passes between the processes of a backend.
enum class Carries {
  kNothing,  // there are no others
  kFrames,   // frames over streams (core/links), in a codec's form, over several connections
  kMemory,   // nothing is sent: they read each other's memory
  kSums,     // what a library adds up on its way, in fp32
};

// What a backend is and can do.
struct BackendTrait {
  Backend backend;
  Topology topology;
  Link link;
  Carries carries;
  bool counts_bytes;  // its wire_stats() say what it sent
  bool plan_order;    // folds in the plan's order (core/plan/stripes.h), so that its bits are known
  bool updates_at_owner;  // offers UpdateSite::kOwner
  bool on_host;           // its buckets are in the host's memory, and staged for a GPU
};

// In the order of Backend.
constexpr std::array<BackendTrait, 12> kBackends = {{
    {Backend::kLocal, Topology::kLocal, Link::kNone, Carries::kNothing, true, true, true, true},
    {Backend::kRingOverGrpc, Topology::kRing, Link::kGrpc, Carries::kFrames, true, true, true,
     true},
    {Backend::kRingOverTcp, Topology::kRing, Link::kTcp, Carries::kFrames, true, true, true, true},
    {Backend::kRingOverShm, Topology::kRing, Link::kShm, Carries::kMemory, true, true, true, true},
    {Backend::kRingOverGloo, Topology::kRing, Link::kGloo, Carries::kSums, false, false, false,
     true},
    {Backend::kRingOverNccl, Topology::kRing, Link::kNccl, Carries::kSums, false, false, true,
     false},
    {Backend::kRingOverCudaIpc, Topology::kRing, Link::kCudaIpc, Carries::kMemory, true, true, true,
     false},
    {Backend::kPsOverGrpc, Topology::kPs, Link::kGrpc, Carries::kFrames, true, true, true, true},
    {Backend::kPsOverTcp, Topology::kPs, Link::kTcp, Carries::kFrames, true, true, true, true},
    {Backend::kPsOverShm, Topology::kPs, Link::kShm, Carries::kMemory, true, true, true, true},
    {Backend::kPsOverNccl, Topology::kPs, Link::kNccl, Carries::kSums, true, true, true, false},
    {Backend::kPsOverCudaIpc, Topology::kPs, Link::kCudaIpc, Carries::kMemory, true, true, true,
     false},
}};

constexpr const BackendTrait& TraitOf(Backend backend) {
  return kBackends[static_cast<size_t>(backend)];
}

// As flags and records spell them: "ps"; "cuda_ipc", and "" for kNone; "owner".
std::string TopologyName(Topology topology);
std::string LinkName(Link link);
std::string UpdateSiteName(UpdateSite site);

// For people: "ring over shm", "local".
std::string BackendName(Backend backend);

struct JobSpec {
  Topology topology = Topology::kLocal;
  Link link = Link::kAuto;
  UpdateSite update = UpdateSite::kWorker;
  Consistency consistency;
  Codec codec;
  int servers = 0;  // processes
  int owners = 0;   // where workers are the servers: the first so many; 0: all

  // Of servers, one each; 0: nobody asked for shares of their own.
  int server_weights = 0;
  int connections = 0;  // per pair of peers; 0: the default
};

// The flags of the same names, as they were written.
struct JobSpecText {
  std::string topology = "local";
  std::string link = "auto";
  std::string update = "worker";
  std::string consistency = "bsp";
  std::string compression = "none";
};

// Errors, as of all below: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::StatusOr<JobSpec> ParseJobSpec(const JobSpecText& text);
absl::StatusOr<Topology> ParseTopology(absl::string_view text);
absl::StatusOr<Link> ParseLink(absl::string_view text);
absl::StatusOr<UpdateSite> ParseUpdateSite(absl::string_view text);

// Every rule about what goes together. It knows nothing of this build or machine: that is
// gradsync/join/sync_factory.h.
absl::Status CheckJobSpec(const JobSpec& spec);

// The same for an optimizer that clips to a global norm of `max_norm` (0: it does not).
absl::Status CheckClipping(const JobSpec& spec, double max_norm);

// Of a spec that passed CheckJobSpec(). kAuto stands for kLinkBetweenHosts as long as hosts are not
// known, and between ranks and servers that are not all on one.
Backend BackendOf(const JobSpec& spec);

// Null where the topology does not run over the link; with kAuto that of kLinkBetweenHosts, or of the
// topology that has no link.
const BackendTrait* FindBackend(Topology topology, Link link);

// What carries frames in a job over `link`: that, or kLinkBetweenHosts where it is not known yet or
// carries none.
Link FrameLinkOf(Link link);

// Links that exchange what is in the memory of GPUs, and know no server but a rank.
constexpr bool BetweenGpus(Link link) { return link == Link::kNccl || link == Link::kCudaIpc; }

// Servers without processes of their own.
constexpr bool OwnersAreRanks(const JobSpec& spec) {
  return spec.topology == Topology::kPs && BetweenGpus(spec.link);
}

// Parameter servers, each in the process of a worker.
constexpr bool ServersInWorkers(const JobSpec& spec) {
  return spec.topology == Topology::kPs && !BetweenGpus(spec.link) && spec.servers == 0;
}

// Connections per pair of peers that will be used; 0 where there are none.
int ConnectionsOf(const JobSpec& spec);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_JOB_SPEC_H_
