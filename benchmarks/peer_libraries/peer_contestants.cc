#include "benchmarks/peer_libraries/peer_contestants.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "benchmarks/options/flag_checks.h"

namespace gradsync {
namespace {

Contestant Ours(const std::string& topology, const std::string& link) {
  Contestant ours;
  ours.name = absl::StrCat(topology, "/", link);
  ours.library = "gradsync";
  ours.topology = topology;
  ours.link = link;
  ours.role = PeerRole::kOurs;
  ours.launch = PeerLaunch::kSyncBench;
  ours.with_servers = topology == "ps";
  ours.settings = {{}};
  return ours;
}

Contestant Library(const std::string& name, PeerLaunch launch, std::vector<PeerSetting> settings) {
  Contestant library;
  library.name = name;
  library.library = name;
  library.launch = launch;
  library.settings = std::move(settings);
  return library;
}

Contestant Ceiling(const std::string& name, std::vector<PeerSetting> settings) {
  Contestant ceiling = Library(name, PeerLaunch::kProcesses, std::move(settings));
  ceiling.role = PeerRole::kCeiling;
  return ceiling;
}

Contestant GrpcStream(const std::string& topology) {
  Contestant stream;
  stream.name = absl::StrCat("grpc_stream/", topology);
  stream.library = "grpc_stream";
  stream.topology = topology;
  stream.link = "grpc";
  stream.role = PeerRole::kCeiling;
  stream.launch = PeerLaunch::kGrpcStream;
  stream.with_servers = topology == "ps";
  for (const int kib : {64, 256, 1024, 4096}) {
    stream.settings.push_back({absl::StrCat(kib << 10), {}, {}});
  }
  return stream;
}

// c10d uses the first.
std::vector<PeerSetting> GlooSettings() {
  std::vector<PeerSetting> settings;
  for (const char* algorithm :
       {"options_ring", "options_bcube", "ring", "ring_chunked", "halving_doubling", "bcube"}) {
    settings.push_back({algorithm, {}, {}});
  }
  return settings;
}

// On loopback its best way is shared memory by itself; ranks that have no core of their own spin
// for ever (measured: 4 ranks on 2 cores did not end 7 exchanges of 102.4 MB in a minute), for
// which one setting shows as much as all.
std::vector<PeerSetting> MpichSettings(bool crowded) {
  if (crowded) return {{"out_of_place", {}, {}}};
  const std::string algorithm = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=reduce_scatter_allgather";
  return {{"out_of_place", {}, {}},
          {"in_place", {}, {}},
          {"out_of_place", {algorithm}, {}},
          {"in_place", {algorithm}, {}}};
}

// coll/han, xhc, sm and acoll were tried: half as fast or worse. Oversubscribing makes idle ranks
// yield.
std::vector<PeerSetting> OpenMpiSettings(bool crowded) {
  const auto with = [crowded](const char* variant, std::vector<std::string> more) {
    if (crowded) more.insert(more.begin(), "--oversubscribe");
    return PeerSetting{variant, {}, std::move(more)};
  };
  const auto tuned = [](const char* number) {
    return std::vector<std::string>{"--mca", "coll_tuned_use_dynamic_rules",   "1",
                                    "--mca", "coll_tuned_allreduce_algorithm", number};
  };
  return {with("in_place", {}), with("out_of_place", {}),
          with("in_place", {"--mca", "mpi_yield_when_idle", "1"}),
          with("in_place", tuned("4")),   // ring
          with("in_place", tuned("6"))};  // Rabenseifner
}

std::vector<PeerSetting> IntelMpiSettings() {
  const std::string shm = "I_MPI_FABRICS=shm";
  const std::string rabenseifner = "I_MPI_ADJUST_ALLREDUCE=2";
  const std::string reduce_bcast = "I_MPI_ADJUST_ALLREDUCE=3";
  return {{"in_place", {shm}, {}},
          {"out_of_place", {shm}, {}},
          {"out_of_place", {shm, reduce_bcast}, {}},
          {"in_place", {shm, rabenseifner}, {}}};
}

// Over Intel MPI's shared memory. Worker threads of its own were tried: slower by far, without
// cores for them.
std::vector<PeerSetting> OneCclSettings() {
  std::vector<PeerSetting> settings;
  for (const char* algorithm : {"", "nreduce", "rabenseifner", "ring"}) {
    PeerSetting setting{"in_place", {"CCL_ATL_TRANSPORT=mpi", "I_MPI_FABRICS=shm"}, {}};
    if (*algorithm != '\0') {
      setting.environment.push_back(absl::StrCat("CCL_ALLREDUCE=", algorithm));
    }
    settings.push_back(setting);
  }
  return settings;
}

std::vector<Contestant> All(int ranks, int cores) {
  const bool crowded = ranks > cores;
  std::vector<PeerSetting> write_sizes;
  for (const int kib : {64, 256, 1024}) write_sizes.push_back({absl::StrCat(kib << 10), {}, {}});
  return {Ours("ring", "shm"),
          Ours("ps", "shm"),
          Ours("ring", "grpc"),
          Ours("ps", "grpc"),
          Library("gloo", PeerLaunch::kProcesses, GlooSettings()),
          Library("mpich", PeerLaunch::kMpi, MpichSettings(crowded)),
          Library("openmpi", PeerLaunch::kMpi, OpenMpiSettings(crowded)),
          Library("impi", PeerLaunch::kMpi, IntelMpiSettings()),
          Library("oneccl", PeerLaunch::kMpi, OneCclSettings()),
          Ceiling("memcpy", {{}}),
          Ceiling("tcp_stream", write_sizes),
          GrpcStream("ring"),
          GrpcStream("ps")};
}

}  // namespace

std::string DescribeSetting(const PeerSetting& setting) {
  std::vector<std::string> parts;
  if (!setting.variant.empty()) parts.push_back(setting.variant);
  parts.insert(parts.end(), setting.environment.begin(), setting.environment.end());
  if (!setting.launcher.empty()) parts.push_back(absl::StrJoin(setting.launcher, " "));
  return absl::StrJoin(parts, ", ");
}

absl::StatusOr<std::vector<Contestant>> SelectContestants(const std::vector<std::string>& names,
                                                          int ranks, int cores) {
  std::vector<Contestant> all = All(ranks, cores);
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const Contestant& contestant : all) known.push_back(contestant.name);
  GS_RETURN_IF_ERROR(CheckNames("contestants", names, known));
  std::vector<Contestant> selected;
  for (Contestant& contestant : all) {
    if (Contains(names, contestant.name)) selected.push_back(std::move(contestant));
  }
  return selected;
}

}  // namespace gradsync
