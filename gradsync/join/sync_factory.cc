#include "gradsync/join/sync_factory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "allreduce/ipc_gradient_sync.h"
#include "allreduce/nccl_gradient_sync.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/collectives/group_collectives.h"
#include "core/links/grpc_stream.h"
#include "core/links/in_process_stream.h"
#include "core/links/tcp_stream.h"
#include "core/sync/local_sync.h"
#include "core/sync/staged_sync.h"
#include "ps_server/client/ps_gradient_sync.h"
#include "ps_server/client/server_questions.h"

namespace gradsync {
namespace {

JobSpec WholeSpec(const SyncOptions& options) {
  JobSpec job = options.job;
  if (!options.servers.empty()) job.servers = static_cast<int>(options.servers.size());
  job.server_weights = static_cast<int>(options.server_weights.weights.size());
  return job;
}

// What a rank tells the others: the host whose memory it would share (or kApart), the host that it
// is on, and on rank 0 the servers' hosts.
struct Whereabouts {
  std::string shares;
  std::string host;
  std::vector<std::string> servers;
};

// What a rank that shares memory with nobody has for a host.
constexpr absl::string_view kApart = "apart";

std::string Format(const Whereabouts& where) {
  std::vector<std::string> words = {where.shares, where.host};
  words.insert(words.end(), where.servers.begin(), where.servers.end());
  return absl::StrJoin(words, " ");  // keys contain no spaces
}

Whereabouts Parse(const std::string& text) {
  const std::vector<std::string> words = absl::StrSplit(text, ' ');
  Whereabouts where;
  where.shares = words[0];
  if (words.size() > 1) where.host = words[1];
  if (words.size() > 2) where.servers.assign(words.begin() + 2, words.end());
  return where;
}

// GrpcLinkOptions or TcpLinkOptions.
template <typename Options>
Options LinkOptionsOf(const WorkerGroup& group) {
  Options options;
  options.credentials = group.credentials;
  options.proof = {group.run_id, group.key};
  options.failure_timeout = group.failure_timeout;
  return options;
}

std::shared_ptr<StreamLink> NewLink(Link link, const WorkerGroup& group, bool whole_tensors) {
  if (FrameLinkOf(link) == Link::kTcp) return NewTcpLink(LinkOptionsOf<TcpLinkOptions>(group));
  auto options = LinkOptionsOf<GrpcLinkOptions>(group);
  options.probe_bandwidth = whole_tensors;
  return NewGrpcLink(options);
}

// This rank's; on rank 0 it shares its memory only if all servers are on its host.
absl::Status FindOut(const SyncOptions& options, const WorkerGroup& group, Whereabouts* where) {
  const absl::StatusOr<HostIdentity> own = ReadHostIdentity();
  if (own.ok()) where->host = own->Key();
  if (options.job.topology == Topology::kPs && !options.servers_in_workers && group.rank == 0) {
    GS_ASSIGN_OR_RETURN(where->servers,
                        AskServerHosts(*StreamLinkOf(options.job.link, group), options.servers,
                                       Deadline::In(group.timeout), group.failure_timeout));
  }
  if (!own.ok() || options.job.codec.compresses() || !options.job.consistency.bulk()) {
    return absl::OkStatus();
  }
  for (const std::string& server : where->servers) {
    if (server != where->host) return absl::OkStatus();
  }
  where->shares = where->host;
  return absl::OkStatus();
}

Link LinkAmong(Topology topology, const std::vector<Whereabouts>& ranks) {
  const BackendTrait* trait = FindBackend(topology, Link::kShm);
  for (const Whereabouts& rank : ranks) {
    if (rank.shares == kApart || rank.shares != ranks[0].shares) trait = nullptr;
  }
  return (trait != nullptr ? trait : FindBackend(topology, Link::kAuto))->link;
}

absl::Status CheckGloo(const SyncOptions& options) {
  if (options.adapters.create_gloo != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--link=gloo: this program links no Gloo, which comes with LibTorch; or use --link=grpc or "
      "tcp");
}

}  // namespace

absl::Status ValidateSyncOptions(const SyncOptions& options) {
  GS_RETURN_IF_ERROR(CheckJobSpec(WholeSpec(options)));
  if (options.job.link == Link::kGloo) return CheckGloo(options);
  return options.job.link == Link::kNccl ? CheckNccl(options) : absl::OkStatus();
}

absl::Status CheckNccl(const SyncOptions& options) {
  if (options.nccl != nullptr || options.adapters.open_nccl != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--link=nccl: this build has no NCCL: build with bazel build --config=cuda //worker, after "
      "tools/setup --cuda; or use --link=grpc");
}

absl::Status CheckOwners(const JobSpec& job, int workers) {
  if (job.owners <= workers) return absl::OkStatus();
  return FlagError("owners", absl::StrCat("at most ", workers, ", as many as there are workers"),
                   absl::StrCat(job.owners));
}

absl::Status CheckLinkDevice(Link link, const GpuApi* gpu) {
  if (gpu != nullptr || !BetweenGpus(link)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--link=", LinkName(link), ": expected a GPU (--device=cuda), found none; or use --link=",
      link == Link::kNccl ? "grpc" : "shm"));
}

absl::Status ResolveByHosts(const WorkerGroup& group, SyncOptions* options) {
  JobSpec& job = options->job;
  options->weights = options->server_weights.weights;
  const bool find_link = job.link == Link::kAuto && job.topology != Topology::kLocal;
  const bool find_weights = job.topology == Topology::kPs && !OwnersAreRanks(job) &&
                            !options->servers_in_workers && options->server_weights.by_host;
  if (!find_link && !find_weights) return absl::OkStatus();
  // A rank that compresses, or has another consistency, takes part too, so that ranks that disagree
  // meet in Bind(), which says so; and one that cannot reach a server, so that nobody waits for it
  // in vain.
  Whereabouts own = {std::string(kApart), std::string(kApart), {}};
  const absl::Status found = FindOut(*options, group, &own);
  const int patience =
      job.topology == Topology::kPs ? 2 : 1;  // rank 0 may come late, from the servers
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      group.store->AllGather(group.Key("host"), group.rank, group.world_size,
                                             Format(own), Deadline::In(patience * group.timeout)));
  GS_RETURN_IF_ERROR(found);
  std::vector<Whereabouts> ranks;
  std::vector<std::string> hosts;
  for (const std::string& text : texts) {
    ranks.push_back(Parse(text));
    hosts.push_back(ranks.back().host);
  }
  if (find_link) job.link = LinkAmong(job.topology, ranks);
  options->servers_run =
      options->servers_in_workers || ranks[0].servers.size() == options->servers.size();
  if (find_weights && options->servers_run) {
    options->weights = WeightsByHost(hosts, ranks[0].servers);
  }
  return absl::OkStatus();
}

std::shared_ptr<StreamLink> StreamLinkOf(Link link, const WorkerGroup& group) {
  return NewLink(link, group, /*whole_tensors=*/false);
}

std::shared_ptr<StreamLink> OwnServerLinkOf(Link link, const WorkerGroup& group) {
  return NewNearLink(StreamLinkOf(link, group), {group.run_id, group.key});
}

std::shared_ptr<StreamLink> TensorLinkOf(Link link, const WorkerGroup& group) {
  return NewLink(link, group, /*whole_tensors=*/true);
}

namespace {

absl::StatusOr<std::unique_ptr<GradientSync>> CreateRing(Backend backend,
                                                         const SyncOptions& options,
                                                         const WorkerGroup& group) {
  RingOptions ring;
  ring.backend = backend;
  ring.group = group;
  ring.link = StreamLinkOf(options.job.link, group);
  ring.update_site = options.job.update;
  ring.connections = ConnectionsOf(options.job);
  return CreateRingGradientSync(ring);
}

absl::StatusOr<std::unique_ptr<GradientSync>> CreateShmRing(const SyncOptions& options,
                                                            const WorkerGroup& group) {
  ShmRingOptions shm;
  shm.group = group;
  shm.update_site = options.job.update;
  return CreateShmRingGradientSync(shm);
}

absl::StatusOr<std::unique_ptr<GradientSync>> CreateServers(Backend backend,
                                                            const SyncOptions& options,
                                                            const WorkerGroup& group) {
  const bool windows = TraitOf(backend).carries == Carries::kMemory;
  PsOptions ps;
  ps.backend = backend;
  ps.group = group;
  ps.link =
      options.server_link != nullptr ? options.server_link : StreamLinkOf(options.job.link, group);
  ps.servers = options.servers;
  ps.numbers = options.server_numbers;
  ps.in_workers = options.servers_in_workers;
  ps.weights = options.weights;
  ps.servers_run = options.servers_run;
  ps.update_site = options.job.update;
  ps.consistency = options.job.consistency;
  ps.windows = windows;
  ps.connections = windows ? 1 : ConnectionsOf(options.job);
  return CreatePsGradientSync(ps);
}

absl::StatusOr<std::unique_ptr<GradientSync>> CreateNccl(const SyncOptions& options,
                                                         const WorkerGroup& group, int owners) {
  GS_RETURN_IF_ERROR(
      CheckLinkDevice(Link::kNccl, options.nccl == nullptr ? nullptr : options.gpu.get()));
  NcclOptions nccl;
  nccl.owners = owners;
  nccl.group = group;
  nccl.update_site = options.job.update;
  nccl.gpu = options.gpu;
  nccl.nccl = options.nccl;
  return CreateNcclGradientSync(nccl);
}

absl::StatusOr<std::unique_ptr<GradientSync>> CreateCudaIpc(const SyncOptions& options,
                                                            const WorkerGroup& group,
                                                            bool servers) {
  GS_RETURN_IF_ERROR(CheckLinkDevice(Link::kCudaIpc, options.gpu.get()));
  IpcOptions ipc;
  ipc.group = group;
  ipc.update_site = options.job.update;
  ipc.servers = servers;
  ipc.owners = options.job.owners;
  ipc.gpu = options.gpu;
  return CreateIpcGradientSync(ipc);
}

// Without a default, so that a backend without a case is no build (-Werror=switch).
absl::StatusOr<std::unique_ptr<GradientSync>> Create(Backend backend, const SyncOptions& options,
                                                     const WorkerGroup& group) {
  switch (backend) {
    case Backend::kLocal:
      return CreateLocalSync(options.job.update);
    case Backend::kRingOverGrpc:
    case Backend::kRingOverTcp:
      return CreateRing(backend, options, group);
    case Backend::kRingOverShm:
      return CreateShmRing(options, group);
    case Backend::kRingOverGloo:
      GS_RETURN_IF_ERROR(CheckGloo(options));
      return options.adapters.create_gloo(group, options.job.update);
    case Backend::kRingOverNccl:
      return CreateNccl(options, group, /*owners=*/0);
    case Backend::kRingOverCudaIpc:
      return CreateCudaIpc(options, group, /*servers=*/false);
    case Backend::kPsOverGrpc:
    case Backend::kPsOverTcp:
    case Backend::kPsOverShm:
      return CreateServers(backend, options, group);
    case Backend::kPsOverNccl:
      return CreateNccl(options, group,
                        options.job.owners == 0 ? group.world_size : options.job.owners);
    case Backend::kPsOverCudaIpc:
      return CreateCudaIpc(options, group, /*servers=*/true);
  }
  return absl::InternalError("a backend that is none");
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateGradientSync(const SyncOptions& options,
                                                                 const WorkerGroup& group) {
  GS_RETURN_IF_ERROR(CheckOwners(options.job, group.world_size));
  const Backend backend = BackendOf(options.job);
  GS_ASSIGN_OR_RETURN(std::unique_ptr<GradientSync> sync, Create(backend, options, group));
  if (TraitOf(backend).on_host && options.gpu != nullptr) {
    sync = CreateStagedSync(std::move(sync), options.gpu);
  }
  if (sync->identity().backend != backend || sync->update_site() != options.job.update) {
    return absl::InternalError(absl::StrCat("expected ", BackendName(backend), ", found ",
                                            BackendName(sync->identity().backend)));
  }
  return sync;
}

absl::StatusOr<std::unique_ptr<GroupCollectives>> OpenCollectives(const SyncOptions& options,
                                                                  const WorkerGroup& group,
                                                                  Deadline deadline) {
  GroupCollectivesOptions collectives;
  collectives.topology = options.job.topology;
  collectives.owners = options.job.owners;
  if (options.job.topology != Topology::kLocal) collectives.group = group;
  if (collectives.group.world_size == 1) return GroupCollectives::Open(collectives, deadline);
  SyncOptions resolved;
  resolved.job.topology = Topology::kRing;
  resolved.job.link = options.job.link;
  if (resolved.job.link == Link::kGloo || resolved.job.link == Link::kNccl) {
    resolved.job.link = Link::kAuto;
    GS_RETURN_IF_ERROR(ResolveByHosts(group, &resolved));
  }
  const bool memory = resolved.job.link == Link::kShm || resolved.job.link == Link::kCudaIpc;
  if (!memory) collectives.link = StreamLinkOf(resolved.job.link, group);
  return GroupCollectives::Open(collectives, deadline);
}

}  // namespace gradsync
