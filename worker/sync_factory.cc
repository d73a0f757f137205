#include "worker/sync_factory.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "allreduce/gloo_gradient_sync.h"
#include "allreduce/ipc_gradient_sync.h"
#include "allreduce/nccl_gradient_sync.h"
#include "allreduce/open_nccl.h"
#include "allreduce/ring_gradient_sync.h"
#include "allreduce/shm_gradient_sync.h"
#include "base/deadline.h"
#include "base/flag_error.h"
#include "base/host_identity.h"
#include "base/status_macros.h"
#include "links/grpc_stream.h"
#include "plan/codec.h"
#include "plan/consistency.h"
#include "ps_client/ps_gradient_sync.h"
#include "ps_client/server_hosts.h"
#include "sync/local_sync.h"
#include "sync/staged_sync.h"
#include "worker/server_weights.h"

namespace gradsync {
namespace {

constexpr int kRingConnections = 4;
constexpr int kPsConnections = 2;

bool IsOneOf(absl::string_view value, std::initializer_list<absl::string_view> known) {
  for (absl::string_view k : known) {
    if (value == k) return true;
  }
  return false;
}

UpdateSite SiteOf(const SyncOptions& options) {
  return options.update == "owner" ? UpdateSite::kOwner : UpdateSite::kWorker;
}

// Links that exchange what is in the memory of GPUs, and know no server but a rank.
bool BetweenGpus(const SyncOptions& options) {
  return options.link == "nccl" || options.link == "cuda_ipc";
}

absl::Status ValidateLink(const SyncOptions& options) {
  if (!IsOneOf(options.link, {"auto", "grpc", "shm", "gloo", "nccl", "cuda_ipc"})) {
    return FlagError("link", "auto, grpc, shm, gloo, nccl or cuda_ipc", options.link);
  }
  if (options.link == "shm" && options.topology == "local") {
    return FlagError("link", "auto with --topology=local", options.link);
  }
  if (BetweenGpus(options) && options.topology == "local") {
    return FlagError("link", "auto with --topology=local", options.link);
  }
  if (options.link == "nccl" && options.nccl == nullptr && NcclVersion() == 0) {
    return absl::InvalidArgumentError(
        "--link=nccl: this build has no NCCL: build with bazel build --config=cuda //worker, after "
        "tools/setup --cuda; or use --link=grpc");
  }
  if (options.link == "gloo" && options.topology != "ring") {
    return FlagError("link", "grpc with --topology=" + options.topology, options.link);
  }
  if (options.link == "gloo" && options.update == "owner") {
    return absl::InvalidArgumentError(
        "--update=owner: expected worker with --link=gloo, whose process group has no "
        "reduce-scatter");
  }
  return absl::OkStatus();
}

absl::Status ValidateCompression(const SyncOptions& options) {
  const absl::StatusOr<Codec> codec = ParseCodec(options.compression);
  if (!codec.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--compression: ", codec.status().message()));
  }
  if (!codec->compresses()) return absl::OkStatus();
  if (options.topology == "local") {
    return FlagError("compression", "none with --topology=local, which sends nothing",
                     options.compression);
  }
  if (options.link == "shm" || options.link == "cuda_ipc") {
    return FlagError("compression",
                     absl::StrCat("none with --link=", options.link,
                                  ", where ranks read each other's memory and nothing is sent (or "
                                  "--link=grpc)"),
                     options.compression);
  }
  if (options.link == "gloo") {
    return FlagError("compression", "none with --link=gloo, which adds what it sends, in fp32",
                     options.compression);
  }
  if (options.link == "nccl") {
    return FlagError("compression", "none with --link=nccl, which adds what it sends, in fp32",
                     options.compression);
  }
  if (codec->sparse() && options.topology == "ring") {
    return FlagError("compression",
                     "none, fp16 or bf16 with --topology=ring, whose sparse sums would grow at "
                     "each hop",
                     options.compression);
  }
  return absl::OkStatus();
}

absl::Status ValidateConsistency(const SyncOptions& options) {
  const absl::StatusOr<Consistency> consistency = ParseConsistency(options.consistency);
  if (!consistency.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--consistency: ", consistency.status().message()));
  }
  if (consistency->bulk()) return absl::OkStatus();
  const auto refuse = [&](absl::string_view with) {
    return FlagError("consistency", absl::StrCat("bsp with ", with), options.consistency);
  };
  if (options.topology != "ps") {
    return refuse(absl::StrCat("--topology=", options.topology,
                               ", because only a parameter server can apply a gradient alone"));
  }
  if (options.link == "shm" || options.link == "gloo" || BetweenGpus(options)) {
    return refuse(absl::StrCat("--link=", options.link,
                               ", which sums all gradients at once (use --link=grpc)"));
  }
  if (options.update != "owner") {
    return refuse("--update=worker, because servers must hold the parameters (use --update=owner)");
  }
  const absl::StatusOr<Codec> codec = ParseCodec(options.compression);
  if (codec.ok() && codec->compresses()) {
    return refuse(absl::StrCat("--compression=", options.compression));
  }
  return absl::OkStatus();
}

// Where servers are no processes but ranks.
bool OwnersAreRanks(const SyncOptions& options) {
  return options.topology == "ps" && BetweenGpus(options);
}

absl::Status ValidateServers(const SyncOptions& options) {
  if (OwnersAreRanks(options)) {
    if (!options.servers.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--servers, --num_servers: expected none with --topology=ps --link=", options.link,
          ", where workers are the servers (--owners), and no processes of their own, found ",
          options.servers.size()));
    }
  } else if (options.topology == "ps" && options.servers.empty()) {
    return absl::InvalidArgumentError(
        "--servers: expected host:port,... with --topology=ps, found none; start one with "
        "bazel run //ps_server -- --listen=127.0.0.1:0");
  }
  if (options.topology != "ps" && !options.servers.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--servers: expected none with --topology=", options.topology, ", found ",
                     options.servers.size()));
  }
  if (options.owners < 0) {
    return FlagError("owners", "at least 1, or 0 for all workers", absl::StrCat(options.owners));
  }
  if (options.owners > 0 && !OwnersAreRanks(options)) {
    return FlagError("owners",
                     absl::StrCat("0 with --topology=", options.topology, " --link=", options.link,
                                  ", as workers are servers only with --topology=ps and "
                                  "--link=nccl or cuda_ipc"),
                     absl::StrCat(options.owners));
  }
  return absl::OkStatus();
}

absl::Status ValidateWeights(const SyncOptions& options) {
  GS_ASSIGN_OR_RETURN(const ServerWeights weights, ParseServerWeights(options.server_weights));
  if (weights.weights.empty()) return absl::OkStatus();
  if (options.topology != "ps") {
    return FlagError("server_weights", "none with --topology=" + options.topology,
                     options.server_weights);
  }
  if (OwnersAreRanks(options)) {
    return FlagError(
        "server_weights",
        absl::StrCat("auto or equal with --link=", options.link, ", whose owners have equal parts"),
        options.server_weights);
  }
  if (!options.servers.empty() && weights.weights.size() != options.servers.size()) {
    return FlagError("server_weights",
                     absl::StrCat("one for each of ", options.servers.size(), " servers"),
                     options.server_weights);
  }
  return absl::OkStatus();
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

// This rank's; on rank 0 it shares its memory only if all servers are on its host.
absl::Status FindOut(const SyncOptions& options, const WorkerGroup& group, Whereabouts* where) {
  const absl::StatusOr<HostIdentity> own = ReadHostIdentity();
  if (own.ok()) where->host = own->Key();
  if (options.topology == "ps" && group.rank == 0) {
    GrpcLinkOptions link_options;
    link_options.credentials = group.credentials;
    GS_ASSIGN_OR_RETURN(where->servers, AskServerHosts(*NewGrpcLink(link_options), options.servers,
                                                       Deadline::In(group.timeout)));
  }
  GS_ASSIGN_OR_RETURN(const Codec codec, ParseCodec(options.compression));
  GS_ASSIGN_OR_RETURN(const Consistency consistency, ParseConsistency(options.consistency));
  if (!own.ok() || codec.compresses() || !consistency.bulk()) return absl::OkStatus();
  for (const std::string& server : where->servers) {
    if (server != where->host) return absl::OkStatus();
  }
  where->shares = where->host;
  return absl::OkStatus();
}

std::string LinkAmong(const std::vector<Whereabouts>& ranks) {
  for (const Whereabouts& rank : ranks) {
    if (rank.shares == kApart || rank.shares != ranks[0].shares) return "grpc";
  }
  return "shm";
}

}  // namespace

absl::Status ValidateSyncOptions(const SyncOptions& options) {
  if (!IsOneOf(options.topology, {"local", "ps", "ring"})) {
    return FlagError("topology", "local, ps or ring", options.topology);
  }
  if (!IsOneOf(options.update, {"worker", "owner"})) {
    return FlagError("update", "worker or owner", options.update);
  }
  GS_RETURN_IF_ERROR(ValidateConsistency(options));
  GS_RETURN_IF_ERROR(ValidateServers(options));
  GS_RETURN_IF_ERROR(ValidateWeights(options));
  if (options.connections < 0) {
    return FlagError("connections", "at least 1, or 0 for the default",
                     absl::StrCat(options.connections));
  }
  GS_RETURN_IF_ERROR(ValidateLink(options));
  return ValidateCompression(options);
}

absl::Status CheckNcclDevice(const GpuApi* gpu) {
  if (gpu != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--link=nccl: expected a GPU (--device=cuda), found none; or use --link=grpc");
}

absl::Status CheckIpcDevice(const GpuApi* gpu) {
  if (gpu != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--link=cuda_ipc: expected a GPU (--device=cuda), found none; or use --link=shm");
}

absl::Status ValidateClipping(const SyncOptions& options, double max_norm) {
  GS_ASSIGN_OR_RETURN(const Consistency consistency, ParseConsistency(options.consistency));
  if (consistency.bulk() || max_norm == 0) return absl::OkStatus();
  return FlagError("max_norm",
                   absl::StrCat("0 with --consistency=", options.consistency,
                                ", where no step has a mean gradient whose norm could be taken"),
                   absl::StrCat(max_norm));
}

std::string ResolvedLink(const SyncOptions& options) {
  if (options.topology == "local") return "";
  return options.link == "auto" ? "grpc" : options.link;
}

int ResolvedConnections(const SyncOptions& options) {
  if (options.topology == "local" || options.link == "shm" || options.link == "gloo" ||
      BetweenGpus(options)) {
    return 0;
  }
  if (options.connections != 0) return options.connections;
  return options.topology == "ps" ? kPsConnections : kRingConnections;
}

absl::Status ResolveByHosts(const WorkerGroup& group, SyncOptions* options) {
  GS_ASSIGN_OR_RETURN(const ServerWeights asked_for, ParseServerWeights(options->server_weights));
  options->weights = asked_for.weights;
  const bool find_link = options->link == "auto" && options->topology != "local";
  const bool find_weights =
      options->topology == "ps" && !OwnersAreRanks(*options) && asked_for.by_host;
  if (!find_link && !find_weights) return absl::OkStatus();
  // A rank that compresses, or has another consistency, takes part too, so that ranks that disagree
  // meet in Bind(), which says so; and one that cannot reach a server, so that nobody waits for it
  // in vain.
  Whereabouts own = {std::string(kApart), std::string(kApart), {}};
  const absl::Status found = FindOut(*options, group, &own);
  const int patience = options->topology == "ps" ? 2 : 1;  // rank 0 may come late, from the servers
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                      group.store->Exchange(group.Key("host"), group.rank, group.world_size,
                                            Format(own), Deadline::In(patience * group.timeout)));
  GS_RETURN_IF_ERROR(found);
  std::vector<Whereabouts> ranks;
  std::vector<std::string> hosts;
  for (const std::string& text : texts) {
    ranks.push_back(Parse(text));
    hosts.push_back(ranks.back().host);
  }
  if (find_link) options->link = LinkAmong(ranks);
  if (find_weights && ranks[0].servers.size() == options->servers.size()) {
    options->weights = WeightsByHost(hosts, ranks[0].servers);
  }
  return absl::OkStatus();
}

namespace {

// Exchanges buckets in memory of the host.
absl::StatusOr<std::unique_ptr<GradientSync>> CreateHostSync(const SyncOptions& options,
                                                             const WorkerGroup& group) {
  if (options.topology == "local") return CreateLocalSync(SiteOf(options));
  if (options.topology == "ring" && ResolvedLink(options) == "shm") {
    ShmRingOptions shm;
    shm.group = group;
    shm.update_site = SiteOf(options);
    return CreateShmRingGradientSync(shm);
  }
  if (options.topology == "ring" && ResolvedLink(options) == "gloo") {
    GlooOptions gloo;
    gloo.group = group;
    gloo.update_site = SiteOf(options);
    return CreateGlooGradientSync(gloo);
  }
  GrpcLinkOptions link_options;
  link_options.credentials = group.credentials;
  const std::shared_ptr<StreamLink> link = NewGrpcLink(link_options);
  if (options.topology == "ring") {
    RingOptions ring;
    ring.group = group;
    ring.link = link;
    ring.update_site = SiteOf(options);
    ring.connections = ResolvedConnections(options);
    return CreateRingGradientSync(ring);
  }
  PsOptions ps;
  ps.group = group;
  ps.link = link;
  ps.servers = options.servers;
  ps.weights = options.weights;
  ps.update_site = SiteOf(options);
  GS_ASSIGN_OR_RETURN(ps.consistency, ParseConsistency(options.consistency));
  ps.windows = ResolvedLink(options) == "shm";
  ps.connections = ps.windows ? 1 : ResolvedConnections(options);
  return CreatePsGradientSync(ps);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GradientSync>> CreateGradientSync(const SyncOptions& options,
                                                                 const WorkerGroup& group) {
  if (BetweenGpus(options) && options.owners > group.world_size) {
    return FlagError("owners",
                     absl::StrCat("at most ", group.world_size, ", as many as there are workers"),
                     absl::StrCat(options.owners));
  }
  if (options.link == "cuda_ipc") {
    GS_RETURN_IF_ERROR(CheckIpcDevice(options.gpu.get()));
    IpcOptions ipc;
    ipc.group = group;
    ipc.update_site = SiteOf(options);
    ipc.servers = OwnersAreRanks(options);
    ipc.owners = options.owners;
    ipc.gpu = options.gpu;
    return CreateIpcGradientSync(ipc);
  }
  if (options.link == "nccl") {
    GS_RETURN_IF_ERROR(CheckNcclDevice(options.nccl == nullptr ? nullptr : options.gpu.get()));
    NcclOptions nccl;
    if (OwnersAreRanks(options)) {
      nccl.owners = options.owners == 0 ? group.world_size : options.owners;
    }
    nccl.group = group;
    nccl.update_site = SiteOf(options);
    nccl.gpu = options.gpu;
    nccl.nccl = options.nccl;
    return CreateNcclGradientSync(nccl);
  }
  GS_ASSIGN_OR_RETURN(std::unique_ptr<GradientSync> host, CreateHostSync(options, group));
  if (options.gpu == nullptr) return host;
  return CreateStagedSync(std::move(host), options.gpu);
}

}  // namespace gradsync
