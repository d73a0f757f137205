// What the program that started this process, a worker or a parameter server, says about it in
// environment variables.

#ifndef GRADSYNC_CORE_GROUP_LAUNCH_ENVIRONMENT_H_
#define GRADSYNC_CORE_GROUP_LAUNCH_ENVIRONMENT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

enum class Launcher { kNone, kTorchrun, kOpenMpi, kMpich, kSlurm };

// "Slurm"; empty for kNone.
absl::string_view LauncherName(Launcher launcher);

// Unset fields are those that the launcher says nothing about.
struct LaunchEnvironment {
  Launcher launcher = Launcher::kNone;
  absl::optional<int> rank;
  absl::optional<int> world_size;
  absl::optional<int> local_rank;      // among the workers of this host
  absl::optional<int> local_size;      // how many those are
  absl::optional<std::string> master;  // "host:port" where rank 0 is to hold the store
  absl::optional<std::string> run_id;
  int attempt = 0;  // restarts of the job so far
  // To be printed: several workers were asked for and this process trains alone, or launchers'
  // variables contradict each other.
  std::string notice;
};

// Whether a program's flags leave nothing to ask of a launcher: one worker alone, or a rank, a world
// size and where the store is. No launcher's variable is read then.
bool SaysAll(absl::optional<int> rank, absl::optional<int> world_size, absl::string_view master);

// Whether a launcher sets this variable to say which of its processes this is and where the others
// are. Programs that start the processes of a job of their own keep these from them.
bool IsLauncherVariable(absl::string_view name);

// The first launcher of which a rank and a number of ranks are set:
//
//   torchrun    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID,
//               TORCHELASTIC_RESTART_COUNT, LOCAL_WORLD_SIZE. With
//               TORCHELASTIC_USE_AGENT_STORE=True the agent listens at MASTER_PORT, so the next
//               port is taken. Other launchers set the first five as well (PyTorchJob, people).
//   OpenMPI     OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE; PMIX_NAMESPACE as run id
//   MPICH,      PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS; not those that Slurm sets
//   Intel MPI   beside its own (srun --mpi=pmi2), which have the same numbers and no MPI_LOCALRANKID.
//               As run id SLURM_JOB_ID and I_MPI_HYDRA_UUID, which only Intel MPI sets; MPICH names
//               no job, so its launcher's process stands for one (core/base/launcher_process.h)
//   Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS, SLURM_LOCALID, the first host
//               of SLURM_STEP_NODELIST or SLURM_JOB_NODELIST, SLURM_JOB_ID.SLURM_STEP_ID as run id,
//               SLURM_RESTART_COUNT; in steps alone, so that a batch script is no task
//
// in this order, because each may run inside one that stands below it (torchrun under srun; mpirun
// in a Slurm job). Where the first says that there is one worker and a later one of which both are
// set that there are more, that one counts, with a notice. MASTER_ADDR and MASTER_PORT (29500 if not set) win under all of them. Without
// MASTER_ADDR, an MPI job takes the job's first Slurm host, or 127.0.0.1 if all of it runs on this
// host.
//
// MASTER_ADDR may have IPv6 with or without brackets.
//
// Pure: `lookup` is all it asks, and `launcher_process`, LauncherProcess() or the like, where a
// launcher's variables do not tell its jobs apart; null: they are not told apart. A WORLD_SIZE without RANK is what job scripts export for other
// programs; it must then agree with the launcher's. With none it is a notice. Nothing set at all is
// no error, nor is a master of one worker that is garbled: it is unset.
//
// Errors: INVALID_ARGUMENT naming the variable, what was expected and what was found, when a value
// is garbled or contradicts another, when there are ranks and no launcher says how many, or when one
// says how many (WORLD_SIZE only with LOCAL_RANK) and none has a rank.
absl::StatusOr<LaunchEnvironment> DetectLaunchEnvironment(
    const std::function<absl::optional<std::string>(absl::string_view name)>& lookup,
    const std::function<std::string(absl::string_view mark, bool on_one_host)>& launcher_process =
        nullptr);

// Which tasks of a job are parameter servers, where one launcher starts workers and servers alike
// and counts them together: one srun or mpirun line, one torchrun.

struct TaskRole {
  bool is_server = false;
  int number = 0;   // the worker's rank, or the server's number; both count from 0
  int workers = 0;  // of the whole job
};

// The rule: the last `servers` tasks are servers, all before them are workers. So a worker's rank
// is its task's number, rank 0 is on the launcher's first host, where all look for the store, and
// among the tasks of any host workers come first, so that a worker's local rank is its task's.
// Pure.
// Errors: INVALID_ARGUMENT naming `flag`, which `servers` comes from, when no launcher counts tasks,
// or when there are not at least one server and one worker.
absl::StatusOr<TaskRole> RoleOfTask(const LaunchEnvironment& environment, int servers,
                                    absl::string_view flag = "server_tasks");

// For programs that are one or the other. Errors: INVALID_ARGUMENT naming the rule, when the task
// is not what its program can be.
absl::Status ExpectRole(const TaskRole& role, int servers, bool is_server);

// Host names of a Slurm node list, in order: "gpu[003-005,012],x1" gives gpu003, gpu004, gpu005,
// gpu012, x1. Numbers keep the width of a range's lower end; a name may have several brackets, of
// which the last counts fastest. Errors: INVALID_ARGUMENT, with what was expected and found; lists
// of more than 65536 hosts, as many as a job has workers, are refused.
absl::StatusOr<std::vector<std::string>> ExpandSlurmNodeList(absl::string_view list);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GROUP_LAUNCH_ENVIRONMENT_H_
