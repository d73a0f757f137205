#include "benchmarks/peer_libraries/peer_contestants.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/options/flag_checks.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

JobSpec SpecOf(Topology topology, Link link) {
  JobSpec spec;
  spec.topology = topology;
  spec.link = link;
  return spec;
}

Contestant Ours(Topology topology, Link link) {
  Contestant ours;
  ours.name = absl::StrCat(TopologyName(topology), "/", LinkName(link));
  ours.library = "gradsync";
  ours.spec = SpecOf(topology, link);
  ours.role = PeerRole::kOurs;
  ours.launch = PeerLaunch::kSyncBench;
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

// Settings that are `common` but for their variants.
std::vector<PeerSetting> Variants(const std::vector<std::string>& variants,
                                  const PeerSetting& common = {}) {
  std::vector<PeerSetting> settings(variants.size(), common);
  for (size_t i = 0; i < variants.size(); ++i) settings[i].variant = variants[i];
  return settings;
}

Contestant GrpcStream(Topology topology) {
  Contestant stream;
  stream.name = absl::StrCat("grpc_stream/", TopologyName(topology));
  stream.library = "grpc_stream";
  stream.spec = SpecOf(topology, Link::kGrpc);
  stream.role = PeerRole::kCeiling;
  stream.launch = PeerLaunch::kGrpcStream;
  for (const int kib : {64, 256, 1024, 4096}) {
    stream.settings.push_back({absl::StrCat(kib << 10), {}, {}});
  }
  return stream;
}

// c10d uses the first.
std::vector<PeerSetting> GlooSettings() {
  return Variants(
      {"options_ring", "options_bcube", "ring", "ring_chunked", "halving_doubling", "bcube"});
}

// On loopback its best way is shared memory by itself. Ranks that have no core of their own spin
// until their time slice ends, unless MPICH is told to sleep between polls: with more ranks than
// cores it did not end 7 exchanges of 25 MiB in 40 seconds without.
std::vector<PeerSetting> MpichSettings(bool crowded) {
  std::vector<std::string> yielding;
  if (crowded) {
    yielding = {"MPIR_CVAR_ENABLE_HEAVY_YIELD=1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE=1",
                "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT=10"};
  }
  std::vector<std::string> halving = yielding;
  halving.push_back("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=reduce_scatter_allgather");
  return {{"out_of_place", yielding, {}},
          {"in_place", yielding, {}},
          {"out_of_place", halving, {}},
          {"in_place", halving, {}}};
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

// Its library calls sched_yield (2) or sleeps (3) while it waits, if it is told to.
constexpr char kIntelYield[] = "I_MPI_THREAD_YIELD=2";
constexpr char kIntelSleep[] = "I_MPI_THREAD_YIELD=3";

std::vector<PeerSetting> IntelMpiSettings(bool crowded) {
  const std::string shm = "I_MPI_FABRICS=shm";
  const std::string rabenseifner = "I_MPI_ADJUST_ALLREDUCE=2";
  const std::string reduce_bcast = "I_MPI_ADJUST_ALLREDUCE=3";
  if (crowded) {
    return {{"out_of_place", {shm, kIntelYield}, {}},
            {"out_of_place", {shm, kIntelSleep}, {}},
            {"out_of_place", {shm, "I_MPI_WAIT_MODE=1"}, {}},
            {"in_place", {shm, kIntelSleep}, {}},
            {"in_place", {shm, rabenseifner, kIntelSleep}, {}}};
  }
  return {{"in_place", {shm}, {}},
          {"out_of_place", {shm}, {}},
          {"out_of_place", {shm, reduce_bcast}, {}},
          {"in_place", {shm, rabenseifner}, {}}};
}

// Over Intel MPI's shared memory. Worker threads of its own were tried: slower by far, without
// cores for them. By default it does nothing between its polls.
std::vector<PeerSetting> OneCclSettings(bool crowded) {
  std::vector<PeerSetting> settings;
  for (const char* algorithm : {"", "nreduce", "rabenseifner", "ring"}) {
    for (const char* pause : {"sched_yield", "sleep"}) {
      PeerSetting setting{"in_place", {"CCL_ATL_TRANSPORT=mpi", "I_MPI_FABRICS=shm"}, {}};
      if (crowded) {
        setting.environment.push_back(kIntelSleep);
        setting.environment.push_back(absl::StrCat("CCL_YIELD=", pause));
      }
      if (*algorithm != '\0') {
        setting.environment.push_back(absl::StrCat("CCL_ALLREDUCE=", algorithm));
      }
      settings.push_back(setting);
      if (!crowded) break;
    }
  }
  return settings;
}

// A program of ours in a few dozen lines (mpi_window_main.cc), which needs of MPI the memory alone.
Contestant Window(const std::string& mpi, const PeerSetting& common) {
  Contestant window = Library(absl::StrCat(mpi, "_window"), PeerLaunch::kMpi,
                              Variants({"push_mpi", "push_yield", "pull_yield"}, common));
  window.note =
      "by hand, in memory of MPI_Win_allocate_shared, for ranks of one host alone; not a library";
  return window;
}

std::vector<Contestant> Windows(bool crowded) {
  // As above: ranks that wait in MPI_Barrier must yield.
  PeerSetting impi;
  impi.environment = {"I_MPI_FABRICS=shm"};
  if (crowded) impi.environment.push_back(kIntelYield);
  return {Window("mpich", MpichSettings(crowded)[0]),
          Window("openmpi", OpenMpiSettings(crowded)[0]), Window("impi", impi)};
}

// More pieces are more calls, but more of them are under way at the same time.
Contestant TensorFlow() {
  Contestant tensorflow =
      Library("tensorflow", PeerLaunch::kStanding,
              Variants({"pieces_per_server=1", "pieces_per_server=2", "pieces_per_server=8"}));
  tensorflow.spec = SpecOf(Topology::kPs, Link::kGrpc);
  tensorflow.note =
      "its parameter servers: each worker adds its gradients to the servers' variables and reads "
      "them, and waits for no other worker";
  return tensorflow;
}

std::vector<Contestant> All(int ranks, int cores) {
  const bool crowded = ranks > cores;
  std::vector<PeerSetting> write_sizes;
  for (const int kib : {64, 256, 1024}) write_sizes.push_back({absl::StrCat(kib << 10), {}, {}});
  std::vector<Contestant> all = {Ours(Topology::kRing, Link::kShm),
                                 Ours(Topology::kPs, Link::kShm),
                                 Ours(Topology::kRing, Link::kGrpc),
                                 Ours(Topology::kPs, Link::kGrpc),
                                 Ours(Topology::kRing, Link::kTcp),
                                 Ours(Topology::kPs, Link::kTcp),
                                 Library("gloo", PeerLaunch::kProcesses, GlooSettings()),
                                 Library("mpich", PeerLaunch::kMpi, MpichSettings(crowded)),
                                 Library("openmpi", PeerLaunch::kMpi, OpenMpiSettings(crowded)),
                                 Library("impi", PeerLaunch::kMpi, IntelMpiSettings(crowded)),
                                 Library("oneccl", PeerLaunch::kMpi, OneCclSettings(crowded))};
  for (Contestant& window : Windows(crowded)) all.push_back(std::move(window));
  all.push_back(TensorFlow());
  all.push_back(Ceiling("memcpy", {{}}));
  all.push_back(Ceiling("tcp_stream", write_sizes));
  all.push_back(GrpcStream(Topology::kRing));
  all.push_back(GrpcStream(Topology::kPs));
  return all;
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
