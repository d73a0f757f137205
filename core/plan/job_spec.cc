#include "core/plan/job_spec.h"

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int kRingConnections = 4;
constexpr int kPsConnections = 2;

constexpr bool InOrder() {
  for (size_t i = 0; i < kBackends.size(); ++i) {
    if (static_cast<size_t>(kBackends[i].backend) != i) return false;
  }
  return kBackends.size() == static_cast<size_t>(Backend::kPsOverCudaIpc) + 1;
}
static_assert(InOrder(), "kBackends has a row for each Backend, in their order");

Carries CarriedBy(const JobSpec& spec) {
  const BackendTrait* const trait = FindBackend(spec.topology, spec.link);
  return trait == nullptr ? Carries::kNothing : trait->carries;
}

// Of flags, "a, b or c".
std::string OneOf(const std::vector<std::string>& names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " or ", names.back());
}

std::string LinksOf(Topology topology) {
  std::vector<std::string> names = {LinkName(Link::kAuto)};
  for (const BackendTrait& trait : kBackends) {
    if (trait.topology == topology && trait.link != Link::kNone) {
      names.push_back(LinkName(trait.link));
    }
  }
  return OneOf(names);
}

std::string WithTopology(const JobSpec& spec) {
  return absl::StrCat("--topology=", TopologyName(spec.topology));
}

std::string WithLink(const JobSpec& spec) { return absl::StrCat("--link=", LinkName(spec.link)); }

absl::Status CheckLink(const JobSpec& spec) {
  const BackendTrait* const trait = FindBackend(spec.topology, spec.link);
  if (trait == nullptr) {
    return FlagError("link", absl::StrCat(LinksOf(spec.topology), " with ", WithTopology(spec)),
                     LinkName(spec.link));
  }
  if (spec.update == UpdateSite::kOwner && !trait->updates_at_owner) {
    return FlagError("update",
                     absl::StrCat("worker with ", WithLink(spec), ", which has no reduce-scatter"),
                     UpdateSiteName(spec.update));
  }
  return absl::OkStatus();
}

absl::Status CheckCodec(const JobSpec& spec) {
  if (!spec.codec.compresses()) return absl::OkStatus();
  const auto refuse = [&](absl::string_view expected) {
    return FlagError("compression", expected, CodecName(spec.codec));
  };
  switch (CarriedBy(spec)) {
    case Carries::kNothing:
      return refuse(absl::StrCat("none with ", WithTopology(spec), ", which sends nothing"));
    case Carries::kMemory:
      return refuse(absl::StrCat("none with ", WithLink(spec),
                                 ", where ranks read each other's memory and nothing is sent (or "
                                 "--link=grpc)"));
    case Carries::kSums:
      return refuse(
          absl::StrCat("none with ", WithLink(spec), ", which adds what it sends, in fp32"));
    case Carries::kFrames:
      break;
  }
  if (spec.codec.sparse() && spec.topology == Topology::kRing) {
    return refuse(
        "none, fp16 or bf16 with --topology=ring, whose sparse sums would grow at each hop");
  }
  return absl::OkStatus();
}

absl::Status CheckConsistency(const JobSpec& spec) {
  if (spec.consistency.bulk()) return absl::OkStatus();
  const auto refuse = [&](absl::string_view with) {
    return FlagError("consistency", absl::StrCat("bsp with ", with),
                     ConsistencyName(spec.consistency));
  };
  if (spec.topology != Topology::kPs) {
    return refuse(absl::StrCat(WithTopology(spec),
                               ", because only a parameter server can apply a gradient alone"));
  }
  if (CarriedBy(spec) != Carries::kFrames) {
    return refuse(absl::StrCat(WithLink(spec),
                               ", which sums all gradients at once (use --link=grpc or tcp)"));
  }
  if (spec.update != UpdateSite::kOwner) {
    return refuse("--update=worker, because servers must hold the parameters (use --update=owner)");
  }
  if (spec.codec.compresses()) {
    return refuse(absl::StrCat("--compression=", CodecName(spec.codec)));
  }
  return absl::OkStatus();
}

absl::Status CheckServers(const JobSpec& spec) {
  if (OwnersAreRanks(spec)) {
    if (spec.servers > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--servers, --num_servers: expected none with --topology=ps ", WithLink(spec),
          ", where workers are the servers (--owners), and no processes of their own, found ",
          spec.servers));
    }
  }
  if (spec.topology != Topology::kPs && spec.servers > 0) {
    return absl::InvalidArgumentError(absl::StrCat("--servers: expected none with ",
                                                   WithTopology(spec), ", found ", spec.servers));
  }
  if (spec.owners < 0) {
    return FlagError("owners", "at least 1, or 0 for all workers", absl::StrCat(spec.owners));
  }
  if (spec.owners > 0 && !OwnersAreRanks(spec) && !ServersInWorkers(spec)) {
    return FlagError("owners",
                     spec.servers > 0
                         ? "0 with --servers: without any, workers are the servers"
                         : absl::StrCat("0 with ", WithTopology(spec),
                                        ", as workers are servers only with --topology=ps"),
                     absl::StrCat(spec.owners));
  }
  return absl::OkStatus();
}

absl::Status CheckWeights(const JobSpec& spec) {
  if (spec.server_weights == 0) return absl::OkStatus();
  const auto refuse = [&](absl::string_view expected) {
    return FlagError("server_weights", expected, absl::StrCat(spec.server_weights, " weights"));
  };
  if (spec.topology != Topology::kPs) return refuse("none with " + WithTopology(spec));
  if (OwnersAreRanks(spec) || ServersInWorkers(spec)) {
    return refuse(absl::StrCat("auto or equal with ",
                               OwnersAreRanks(spec) ? WithLink(spec) : "no --servers",
                               ", where workers are the servers and have equal parts"));
  }
  if (spec.server_weights != spec.servers) {
    return refuse(absl::StrCat("one for each of ", spec.servers, " servers"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string TopologyName(Topology topology) {
  switch (topology) {
    case Topology::kLocal:
      return "local";
    case Topology::kPs:
      return "ps";
    case Topology::kRing:
      return "ring";
  }
  return "unknown";
}

std::string LinkName(Link link) {
  switch (link) {
    case Link::kAuto:
      return "auto";
    case Link::kNone:
      return "";
    case Link::kGrpc:
      return "grpc";
    case Link::kTcp:
      return "tcp";
    case Link::kShm:
      return "shm";
    case Link::kGloo:
      return "gloo";
    case Link::kNccl:
      return "nccl";
    case Link::kCudaIpc:
      return "cuda_ipc";
  }
  return "unknown";
}

std::string UpdateSiteName(UpdateSite site) {
  switch (site) {
    case UpdateSite::kWorker:
      return "worker";
    case UpdateSite::kOwner:
      return "owner";
  }
  return "unknown";
}

std::string BackendName(Backend backend) {
  const BackendTrait& trait = TraitOf(backend);
  const std::string topology = TopologyName(trait.topology);
  return trait.link == Link::kNone ? topology
                                   : absl::StrCat(topology, " over ", LinkName(trait.link));
}

absl::StatusOr<Topology> ParseTopology(absl::string_view text) {
  std::vector<std::string> names;
  for (Topology topology : {Topology::kLocal, Topology::kPs, Topology::kRing}) {
    names.push_back(TopologyName(topology));
    if (text == names.back()) return topology;
  }
  return FlagError("topology", OneOf(names), text);
}

absl::StatusOr<Link> ParseLink(absl::string_view text) {
  std::vector<std::string> names;
  for (Link link : {Link::kAuto, Link::kGrpc, Link::kTcp, Link::kShm, Link::kGloo, Link::kNccl,
                    Link::kCudaIpc}) {
    names.push_back(LinkName(link));
    if (text == names.back()) return link;
  }
  return FlagError("link", OneOf(names), text);
}

absl::StatusOr<UpdateSite> ParseUpdateSite(absl::string_view text) {
  for (UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
    if (text == UpdateSiteName(site)) return site;
  }
  return FlagError("update", "worker or owner", text);
}

absl::StatusOr<JobSpec> ParseJobSpec(const JobSpecText& text) {
  JobSpec spec;
  GS_ASSIGN_OR_RETURN(spec.topology, ParseTopology(text.topology));
  GS_ASSIGN_OR_RETURN(spec.link, ParseLink(text.link));
  GS_ASSIGN_OR_RETURN(spec.update, ParseUpdateSite(text.update));
  const auto named = [](absl::string_view flag, const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": ", status.message()));
  };
  const absl::StatusOr<Consistency> consistency = ParseConsistency(text.consistency);
  if (!consistency.ok()) return named("consistency", consistency.status());
  spec.consistency = *consistency;
  const absl::StatusOr<Codec> codec = ParseCodec(text.compression);
  if (!codec.ok()) return named("compression", codec.status());
  spec.codec = *codec;
  return spec;
}

absl::Status CheckJobSpec(const JobSpec& spec) {
  GS_RETURN_IF_ERROR(CheckConsistency(spec));
  GS_RETURN_IF_ERROR(CheckLink(spec));
  GS_RETURN_IF_ERROR(CheckServers(spec));
  GS_RETURN_IF_ERROR(CheckWeights(spec));
  if (spec.connections < 0) {
    return FlagError("connections", "at least 1, or 0 for the default",
                     absl::StrCat(spec.connections));
  }
  return CheckCodec(spec);
}

absl::Status CheckClipping(const JobSpec& spec, double max_norm) {
  if (!(max_norm >= 0) || !std::isfinite(max_norm)) {
    return FlagError("max_norm", "a finite number of at least 0, which does not clip",
                     absl::StrCat(max_norm));
  }
  if (spec.consistency.bulk() || max_norm == 0) return absl::OkStatus();
  return FlagError("max_norm",
                   absl::StrCat("0 with --consistency=", ConsistencyName(spec.consistency),
                                ", where no step has a mean gradient whose norm could be taken"),
                   absl::StrCat(max_norm));
}

const BackendTrait* FindBackend(Topology topology, Link link) {
  if (link == Link::kAuto) link = topology == Topology::kLocal ? Link::kNone : kLinkBetweenHosts;
  for (const BackendTrait& trait : kBackends) {
    if (trait.topology == topology && trait.link == link) return &trait;
  }
  return nullptr;
}

Backend BackendOf(const JobSpec& spec) { return FindBackend(spec.topology, spec.link)->backend; }

Link FrameLinkOf(Link link) {
  for (const BackendTrait& trait : kBackends) {
    if (trait.link == link && trait.carries == Carries::kFrames) return link;
  }
  return kLinkBetweenHosts;
}

int ConnectionsOf(const JobSpec& spec) {
  if (CarriedBy(spec) != Carries::kFrames) return 0;
  if (spec.connections != 0) return spec.connections;
  return spec.topology == Topology::kPs ? kPsConnections : kRingConnections;
}

}  // namespace gradsync
