#include "core/group/launch_environment.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/host_port.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int kDefaultPort = 29500;
constexpr int kAny = std::numeric_limits<int>::max();

using Lookup = std::function<absl::optional<std::string>(absl::string_view)>;
using LauncherProcessOf = std::function<std::string(absl::string_view mark, bool on_one_host)>;

absl::Status Unexpected(absl::string_view variable, absl::string_view expected,
                        absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat(variable, ": expected ", expected, ", found ", found));
}

class Environment {
 public:
  Environment(const Lookup& lookup, const LauncherProcessOf& launcher_process)
      : lookup_(lookup), launcher_process_(launcher_process) {}

  // Unset and empty are the same.
  absl::optional<std::string> Text(absl::string_view variable) const {
    absl::optional<std::string> value = lookup_(variable);
    if (value.has_value() && value->empty()) value.reset();
    return value;
  }

  bool Has(absl::string_view variable) const { return Text(variable).has_value(); }

  absl::StatusOr<absl::optional<int>> Number(absl::string_view variable, int min, int max) const {
    const absl::optional<std::string> text = Text(variable);
    if (!text.has_value()) return absl::optional<int>();
    int number = 0;
    // SimpleAtoi would take a sign and spaces.
    if (text->find_first_not_of("0123456789") != text->npos || !absl::SimpleAtoi(*text, &number) ||
        number < min || number > max) {
      const std::string range =
          max == kAny ? absl::StrCat("of at least ", min) : absl::StrCat("from ", min, " to ", max);
      return Unexpected(variable, absl::StrCat("a whole number ", range),
                        absl::StrCat("\"", *text, "\""));
    }
    return absl::optional<int>(number);
  }

  // The variable must be set, because `because` is.
  absl::StatusOr<int> Required(absl::string_view variable, int min, int max,
                               absl::string_view because) const {
    GS_ASSIGN_OR_RETURN(const absl::optional<int> number, Number(variable, min, max));
    if (!number.has_value()) {
      return Unexpected(variable, absl::StrCat("a whole number, as ", because, " is set"),
                        "nothing");
    }
    return *number;
  }

  // The first of `variables` that is set, or the last.
  absl::string_view FirstSet(std::initializer_list<absl::string_view> variables) const {
    for (absl::string_view variable : variables) {
      if (Has(variable)) return variable;
    }
    return *(variables.end() - 1);
  }

  // Names the launcher's process, whose mark a variable is; may be empty.
  std::string LauncherProcess(absl::string_view mark, bool on_one_host) const {
    return launcher_process_ ? launcher_process_(mark, on_one_host) : "";
  }

 private:
  const Lookup& lookup_;
  const LauncherProcessOf& launcher_process_;
};

absl::Status ReadRanks(const Environment& env, absl::string_view rank, absl::string_view size,
                       absl::string_view local_rank, LaunchEnvironment* result) {
  GS_ASSIGN_OR_RETURN(result->world_size, env.Required(size, 1, kAny, rank));
  const int last = *result->world_size - 1;
  GS_ASSIGN_OR_RETURN(result->rank, env.Number(rank, 0, last));
  GS_ASSIGN_OR_RETURN(result->local_rank, env.Number(local_rank, 0, last));
  // With a rank, WORLD_SIZE is of a set of its own (SettleContradiction()).
  if (env.Has("RANK")) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const absl::optional<int> exported, env.Number("WORLD_SIZE", 1, kAny));
  if (exported.has_value() && exported != result->world_size) {
    return Unexpected("WORLD_SIZE", absl::StrCat(*result->world_size, ", as ", size, " says"),
                      absl::StrCat(*exported));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::optional<std::string>> FirstSlurmHost(const Environment& env) {
  const absl::string_view variable =
      env.FirstSet({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const absl::optional<std::string> list = env.Text(variable);
  if (!list.has_value()) return absl::optional<std::string>();
  const absl::StatusOr<std::vector<std::string>> hosts = ExpandSlurmNodeList(*list);
  if (!hosts.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(variable, ": ", hosts.status().message()));
  }
  return absl::optional<std::string>(hosts->front());
}

// Whether torchrun's own store is at MASTER_PORT, so that the job's is at the next one.
bool AgentHoldsPort(const Environment& env) {
  return env.Has("RANK") && env.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
}

absl::StatusOr<absl::optional<int>> ReadMasterPort(const Environment& env, int max) {
  absl::StatusOr<absl::optional<int>> port = env.Number("MASTER_PORT", 1, max);
  if (port.ok() || !absl::StartsWith(*env.Text("MASTER_PORT"), "tcp://")) return port;
  return absl::InvalidArgumentError(
      absl::StrCat(port.status().message(),
                   ", as Kubernetes sets it for a service named master: set another in the pod, or "
                   "enableServiceLinks: false"));
}

// MASTER_ADDR and MASTER_PORT, or what `first_host` says where MASTER_ADDR is not set.
absl::Status ReadMasterOfSeveral(
    const Environment& env,
    const std::function<absl::StatusOr<absl::optional<std::string>>()>& first_host,
    LaunchEnvironment* result) {
  const bool next_port = AgentHoldsPort(env);
  absl::optional<std::string> host = env.Text("MASTER_ADDR");
  if (!host.has_value()) {
    GS_ASSIGN_OR_RETURN(host, first_host());
  }
  GS_ASSIGN_OR_RETURN(const absl::optional<int> given,
                      ReadMasterPort(env, next_port ? 65534 : 65535));
  if (!host.has_value()) return absl::OkStatus();
  absl::string_view bare = *host;
  if (absl::ConsumePrefix(&bare, "[") && !absl::ConsumeSuffix(&bare, "]")) bare = *host;
  const std::string address =
      FormatHostPort(bare, given.value_or(kDefaultPort) + (next_port ? 1 : 0));
  if (!ParseHostPort(address).ok()) {
    return Unexpected("MASTER_ADDR", "a host name or address", absl::StrCat("\"", *host, "\""));
  }
  result->master = address;
  return absl::OkStatus();
}

// A worker alone needs no master, unless it has servers: what is none is then as good as not set.
absl::Status ReadMaster(
    const Environment& env,
    const std::function<absl::StatusOr<absl::optional<std::string>>()>& first_host,
    LaunchEnvironment* result) {
  const absl::Status read = ReadMasterOfSeveral(env, first_host, result);
  return result->world_size == 1 ? absl::OkStatus() : read;
}

absl::Status ReadTorchrun(const Environment& env, LaunchEnvironment* result) {
  GS_RETURN_IF_ERROR(ReadRanks(env, "RANK", "WORLD_SIZE", "LOCAL_RANK", result));
  GS_ASSIGN_OR_RETURN(result->local_size, env.Number("LOCAL_WORLD_SIZE", 1, *result->world_size));
  const absl::string_view agent_variable = "TORCHELASTIC_USE_AGENT_STORE";
  const std::string agent = env.Text(agent_variable).value_or("False");
  if (agent != "True" && agent != "False") {
    return Unexpected(agent_variable, "True or False", absl::StrCat("\"", agent, "\""));
  }
  GS_RETURN_IF_ERROR(ReadMaster(
      env, [] { return absl::optional<std::string>(); }, result));
  result->run_id = env.Text("TORCHELASTIC_RUN_ID");
  GS_ASSIGN_OR_RETURN(const absl::optional<int> restarts,
                      env.Number("TORCHELASTIC_RESTART_COUNT", 0, kAny));
  result->attempt = restarts.value_or(0);
  return absl::OkStatus();
}

// `host_size` names the variable that counts this host's workers.
absl::Status ReadMpiMaster(const Environment& env, absl::string_view host_size,
                           LaunchEnvironment* result) {
  GS_ASSIGN_OR_RETURN(result->local_size, env.Number(host_size, 1, *result->world_size));
  if (result->local_size == result->world_size) {
    return ReadMaster(
        env, [] { return absl::optional<std::string>("127.0.0.1"); }, result);
  }
  return ReadMaster(
      env, [&env] { return FirstSlurmHost(env); }, result);
}

absl::Status ReadOpenMpi(const Environment& env, LaunchEnvironment* result) {
  GS_RETURN_IF_ERROR(ReadRanks(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                               "OMPI_COMM_WORLD_LOCAL_RANK", result));
  result->run_id = env.Text(env.FirstSet({"PMIX_NAMESPACE", "SLURM_JOB_ID"}));
  return ReadMpiMaster(env, "OMPI_COMM_WORLD_LOCAL_SIZE", result);
}

absl::Status ReadMpich(const Environment& env, LaunchEnvironment* result) {
  GS_RETURN_IF_ERROR(ReadRanks(env, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", result));
  GS_RETURN_IF_ERROR(ReadMpiMaster(env, "MPI_LOCALNRANKS", result));
  // Without the step: on some hosts it is the batch script's, on others that of MPI's own helpers.
  std::vector<std::string> names = {env.Text("SLURM_JOB_ID").value_or("")};
  const bool on_one_host = result->local_size == result->world_size;
  names.push_back(env.Text("I_MPI_HYDRA_UUID").value_or(""));
  if (names.back().empty()) names.back() = env.LauncherProcess("PMI_RANK", on_one_host);
  names.erase(std::remove(names.begin(), names.end(), ""), names.end());
  if (!names.empty()) result->run_id = absl::StrJoin(names, ".");
  return absl::OkStatus();
}

absl::string_view SlurmSize(const Environment& env) {
  return env.FirstSet({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"});
}

// A batch script has a SLURM_PROCID as well, 0, and with --ntasks a SLURM_NTASKS, but is none of
// the tasks that are counted: those are of steps.
bool IsSlurmTask(const Environment& env) {
  const absl::string_view step = env.FirstSet({"SLURM_STEP_ID", "SLURM_STEPID"});
  // The shell that salloc starts on a node is a step of its own, always of this number.
  if (env.Text(step) == "4294967290") return false;
  const bool in_step = env.Has(step);
  return env.Has("SLURM_PROCID") && (in_step || !env.Has("SLURM_JOB_ID"));
}

// In a batch script, or a shell of salloc, that asked for several tasks: what it starts without srun
// is easily taken for training by all of them.
std::string TasksNeverStarted(const Environment& env) {
  const absl::optional<std::string> tasks = env.Text("SLURM_NTASKS");
  int count = 0;
  if (!env.Has("SLURM_JOB_ID") || !absl::SimpleAtoi(tasks.value_or("1"), &count) || count < 2) {
    return "";
  }
  return absl::StrCat(
      "SLURM_NTASKS=", count,
      " but this process is no task of a step: it trains alone; srun in front of the "
      "command starts ",
      count, " workers, --world_size=1 says that one is meant");
}

// With srun --mpi=pmi2 and the like, Slurm itself sets PMI_*. MPICH's and Intel MPI's launchers
// count a host's ranks too, and run inside steps of their own, whose numbers are other ones.
bool IsPmiOfSlurm(const Environment& env) {
  return IsSlurmTask(env) && !env.Has("MPI_LOCALRANKID") &&
         env.Text("PMI_RANK") == env.Text("SLURM_PROCID") &&
         env.Text("PMI_SIZE") == env.Text(SlurmSize(env));
}

absl::Status ReadSlurm(const Environment& env, LaunchEnvironment* result) {
  GS_RETURN_IF_ERROR(ReadRanks(env, "SLURM_PROCID", SlurmSize(env), "SLURM_LOCALID", result));
  GS_RETURN_IF_ERROR(ReadMaster(
      env, [&env] { return FirstSlurmHost(env); }, result));
  result->run_id = env.Text("SLURM_JOB_ID");
  if (result->run_id.has_value() && env.Has("SLURM_STEP_ID")) {
    absl::StrAppend(&*result->run_id, ".", *env.Text("SLURM_STEP_ID"));
  }
  GS_ASSIGN_OR_RETURN(const absl::optional<int> restarts,
                      env.Number("SLURM_RESTART_COUNT", 0, kAny));
  result->attempt = restarts.value_or(0);
  return absl::OkStatus();
}

// A launcher's set of variables.
struct Candidate {
  Launcher launcher;
  absl::string_view rank;  // the variable
  bool has_rank;
  absl::string_view size;  // the variable
  bool has_size;
  absl::Status (*read)(const Environment&, LaunchEnvironment*);

  bool complete() const { return has_rank && has_size; }
};

// In the order in which they count.
std::vector<Candidate> Candidates(const Environment& env) {
  std::vector<Candidate> candidates = {
      {Launcher::kTorchrun, "RANK", true, "WORLD_SIZE", false, ReadTorchrun},
      {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", true, "OMPI_COMM_WORLD_SIZE", false,
       ReadOpenMpi},
      {Launcher::kMpich, "PMI_RANK", !IsPmiOfSlurm(env), "PMI_SIZE", false, ReadMpich},
      {Launcher::kSlurm, "SLURM_PROCID", IsSlurmTask(env), SlurmSize(env), false, ReadSlurm},
  };
  for (Candidate& candidate : candidates) {
    candidate.has_rank = candidate.has_rank && env.Has(candidate.rank);
    candidate.has_size = env.Has(candidate.size);
  }
  return candidates;
}

// 0 for what is no number, which the set's reader will refuse.
int SizeOf(const Environment& env, absl::string_view variable) {
  int size = 0;
  return absl::SimpleAtoi(env.Text(variable).value_or(""), &size) ? size : 0;
}

// One of several workers that does not know which would train alone. WORLD_SIZE by itself is what
// people export; with a LOCAL_RANK it is of a launcher, which has set a rank too.
absl::Status CheckNoRankIsMissing(const Environment& env) {
  struct Pair {
    absl::string_view rank;
    absl::string_view size;
    absl::string_view also;  // that must be set as well
  };
  for (const Pair& pair : {Pair{"RANK", "WORLD_SIZE", "LOCAL_RANK"},
                           Pair{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""},
                           Pair{"PMI_RANK", "PMI_SIZE", ""}}) {
    if (env.Has(pair.rank) || !env.Has(pair.size)) continue;
    if (!pair.also.empty() && !env.Has(pair.also)) continue;
    if (SizeOf(env, pair.size) == 1) continue;
    const std::string and_also = pair.also.empty() ? "" : absl::StrCat(" and ", pair.also);
    return Unexpected(pair.rank,
                      absl::StrCat("a whole number, as ", pair.size, and_also,
                                   pair.also.empty() ? " is set" : " are set"),
                      "nothing");
  }
  return absl::OkStatus();
}

std::string SizeWithoutRank(const Environment& env) {
  const int size = SizeOf(env, "WORLD_SIZE");
  if (size < 2) return "";
  return absl::StrCat("WORLD_SIZE=", size, " is set, but no RANK: this process trains alone");
}

// Whether each set is as it should be where a process of the outer one has started the inner one's:
// torchrun as each task, or MPI's launchers, whose own steps of Slurm have other numbers.
bool IsNested(const Environment& env, const Candidate& inner, const Candidate& outer) {
  if (inner.launcher != Launcher::kTorchrun) return outer.launcher == Launcher::kSlurm;
  const int on_host = SizeOf(env, "LOCAL_WORLD_SIZE");
  return on_host > 0 &&
         SizeOf(env, inner.size) == static_cast<int64_t>(on_host) * SizeOf(env, outer.size);
}

// Whether a rank that all tasks have inherited, say, is another than a later set of equal size has.
// torchrun's agents number theirs as they like.
bool RanksContradict(const Environment& env, const Candidate& chosen, const Candidate& other) {
  return chosen.launcher == Launcher::kTorchrun && !env.Has("TORCHELASTIC_RUN_ID") &&
         env.Text(chosen.rank) != env.Text(other.rank);
}

// Which set counts where `chosen`, the first complete one, and a later one contradict each other.
const Candidate* SettleContradiction(const Environment& env,
                                     const std::vector<Candidate>& candidates,
                                     const Candidate* chosen, std::string* notice) {
  const int size = SizeOf(env, chosen->size);
  for (const Candidate& other : candidates) {
    const int other_size = SizeOf(env, other.size);
    if (&other <= chosen || !other.complete() || other_size == 0) continue;
    if (other_size == size) {
      if (!RanksContradict(env, *chosen, other)) continue;
      *notice = absl::StrCat(chosen->rank, "=", *env.Text(chosen->rank), " and ", other.rank, "=",
                             *env.Text(other.rank), " contradict each other: this process goes by ",
                             chosen->rank);
      return chosen;
    }
    // A pod of PyTorchJob has variables of one worker, which mpirun and srun leave to what they
    // start. But tasks may be jobs of one worker each, as Slurm and MPI start torchrun more often
    // than the other way round, and MPI in a step of Slurm has numbers of its own.
    const bool taken_for_a_pods =
        chosen->launcher == Launcher::kTorchrun && !env.Has("TORCHELASTIC_RUN_ID");
    // What mpirun -n 1 has started may have called srun; its own step would have one task as well.
    const bool left_over = chosen->launcher != Launcher::kTorchrun &&
                           other.launcher == Launcher::kSlurm && env.Has("SLURM_STEP_NUM_TASKS");
    const bool take_other = size == 1 && other_size > 1 && (taken_for_a_pods || left_over);
    if (!take_other && IsNested(env, *chosen, other)) continue;
    const Candidate* const taken = take_other ? &other : chosen;
    *notice = absl::StrCat(chosen->size, "=", size, " and ", other.size, "=", other_size,
                           " contradict each other: this process goes by the variables of ",
                           LauncherName(taken->launcher),
                           take_other ? "; --world_size=1 says that one worker is meant" : "");
    return taken;
  }
  return chosen;
}

}  // namespace

absl::string_view LauncherName(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kMpich:
      return "MPICH";
    case Launcher::kSlurm:
      return "Slurm";
  }
  return "";
}

bool SaysAll(absl::optional<int> rank, absl::optional<int> world_size, absl::string_view master) {
  if (world_size == 1) return rank.value_or(0) == 0;
  return rank.has_value() && world_size.has_value() && !master.empty();
}

bool IsLauncherVariable(absl::string_view name) {
  constexpr absl::string_view kNames[] = {
      // torchrun
      "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
      "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
      // Open MPI, MPICH, Intel MPI
      "OMPI_UNIVERSE_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
      // Slurm; without SLURM_JOBID mpirun sees no Slurm job, and starts its processes here
      "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_NTASKS",
      "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_JOBID", "SLURM_NODELIST",
      "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"};
  constexpr absl::string_view kPrefixes[] = {"TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMIX_", "PMI_",
                                             "SLURM_STEP"};
  const auto is_prefix = [name](absl::string_view prefix) {
    return absl::StartsWith(name, prefix);
  };
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) ||
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes), is_prefix);
}

absl::StatusOr<LaunchEnvironment> DetectLaunchEnvironment(
    const Lookup& lookup, const LauncherProcessOf& launcher_process) {
  const Environment env(lookup, launcher_process);
  const std::vector<Candidate> candidates = Candidates(env);
  const Candidate* chosen = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.has_rank) continue;
    // A set without a size is no more than the best guess, whose reader names what is missing.
    if (chosen == nullptr || (!chosen->has_size && candidate.has_size)) chosen = &candidate;
  }
  LaunchEnvironment result;
  if (chosen == nullptr || !chosen->has_size) GS_RETURN_IF_ERROR(CheckNoRankIsMissing(env));
  if (chosen == nullptr) {
    result.notice = TasksNeverStarted(env);
    if (result.notice.empty()) result.notice = SizeWithoutRank(env);
    return result;
  }
  if (chosen->has_size) chosen = SettleContradiction(env, candidates, chosen, &result.notice);
  result.launcher = chosen->launcher;
  GS_RETURN_IF_ERROR(chosen->read(env, &result));
  return result;
}

}  // namespace gradsync
