#include "core/group/launch_environment.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

absl::StatusOr<LaunchEnvironment> Detect(const Variables& variables) {
  return DetectLaunchEnvironment([&](absl::string_view name) {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? absl::nullopt : absl::optional<std::string>(found->second);
  });
}

Variables With(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables Without(Variables variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) variables.erase(name);
  return variables;
}

const Variables kTorchrun = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"MASTER_ADDR", "node0"},
                             {"MASTER_PORT", "1234"},
                             {"TORCHELASTIC_RUN_ID", "abc"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kSlurm = {{"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
                          {"SLURM_LOCALID", "1"}, {"SLURM_JOB_NODELIST", "gpu[003-010,012],x1"},
                          {"SLURM_JOB_ID", "77"}, {"SLURM_STEP_ID", "0"}};
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_NAMESPACE", "prterun-1@1"}};
const Variables kMpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};

struct Case {
  std::string name;
  Variables variables;
  Launcher launcher = Launcher::kNone;
  absl::optional<int> rank;
  absl::optional<int> world_size;
  absl::optional<int> local_rank;
  absl::optional<std::string> master;
  absl::optional<std::string> run_id;
  int attempt = 0;
};

std::vector<Case> Cases() {
  const auto none = absl::nullopt;
  return {
      {"nothing", {}, Launcher::kNone, none, none, none, none, none, 0},
      {"unrelated variables",
       {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}, {"SLURM_NTASKS", "9"}},
       Launcher::kNone,
       none,
       none,
       none,
       none,
       none,
       0},
      {"torchrun whose agent holds the port", kTorchrun, Launcher::kTorchrun, 5, 8, 1, "node0:1235",
       "abc", 2},
      {"torchrun whose agent does not",
       With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}), Launcher::kTorchrun, 5, 8, 1,
       "node0:1234", "abc", 2},
      {"variables set by hand",
       {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}},
       Launcher::kTorchrun,
       0,
       2,
       none,
       "10.0.0.1:29500",
       none,
       0},
      {"ranks only",
       {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "1"}},
       Launcher::kTorchrun,
       0,
       1,
       none,
       none,
       none,
       0},
      {"an IPv6 master", With(kTorchrun, {{"MASTER_ADDR", "fd00::1"}}), Launcher::kTorchrun, 5, 8,
       1, "[fd00::1]:1235", "abc", 2},
      {"an IPv6 master in brackets", With(kTorchrun, {{"MASTER_ADDR", "[::1]"}}),
       Launcher::kTorchrun, 5, 8, 1, "[::1]:1235", "abc", 2},
      {"a link-local master", With(kTorchrun, {{"MASTER_ADDR", "fe80::1%eth0"}}),
       Launcher::kTorchrun, 5, 8, 1, "[fe80::1%eth0]:1235", "abc", 2},
      {"Intel MPI, which names its jobs", With(kMpich, {{"I_MPI_HYDRA_UUID", "u-1"}}),
       Launcher::kMpich, 1, 2, 1, "127.0.0.1:29500", "u-1", 0},
      {"torchrun inside Slurm", With(kSlurm, kTorchrun), Launcher::kTorchrun, 5, 8, 1, "node0:1235",
       "abc", 2},
      {"torchrun inside OpenMPI", With(kOpenMpi, kTorchrun), Launcher::kTorchrun, 5, 8, 1,
       "node0:1235", "abc", 2},
      {"srun", kSlurm, Launcher::kSlurm, 3, 4, 1, "gpu003:29500", "77.0", 0},
      {"srun of a step on part of the job",
       With(
           kSlurm,
           {{"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_STEP_NODELIST", "x1"}, {"SLURM_PROCID", "15"}}),
       Launcher::kSlurm, 15, 16, 1, "x1:29500", "77.0", 0},
      {"srun with a master and world size exported by the script",
       With(kSlurm, {{"MASTER_ADDR", "other"}, {"MASTER_PORT", "5"}, {"WORLD_SIZE", "4"}}),
       Launcher::kSlurm, 3, 4, 1, "other:5", "77.0", 0},
      {"srun with a port exported by the script", With(kSlurm, {{"MASTER_PORT", "5"}}),
       Launcher::kSlurm, 3, 4, 1, "gpu003:5", "77.0", 0},
      {"a requeued Slurm job", With(kSlurm, {{"SLURM_RESTART_COUNT", "1"}}), Launcher::kSlurm, 3, 4,
       1, "gpu003:29500", "77.0", 1},
      {"Slurm's numbers, set by hand",
       Without(kSlurm, {"SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_LOCALID", "SLURM_JOB_NODELIST"}),
       Launcher::kSlurm, 3, 4, none, none, none, 0},
      {"a batch script whose job has no number of tasks",
       Without(With(kSlurm, {{"SLURM_PROCID", "0"}}), {"SLURM_STEP_ID", "SLURM_NTASKS"}),
       Launcher::kNone, none, none, none, none, none, 0},
      {"a batch script whose job has four tasks",
       Without(With(kSlurm, {{"SLURM_PROCID", "0"}}), {"SLURM_STEP_ID"}), Launcher::kNone, none,
       none, none, none, none, 0},
      {"mpirun in a batch script without a number of tasks",
       With(Without(kSlurm, {"SLURM_STEP_ID", "SLURM_NTASKS"}), kOpenMpi), Launcher::kOpenMpi, 2, 4,
       2, "127.0.0.1:29500", "prterun-1@1", 0},
      {"srun beside a rank that a script exports", With(kSlurm, {{"RANK", "0"}}), Launcher::kSlurm,
       3, 4, 1, "gpu003:29500", "77.0", 0},
      {"a rank of MPICH's without a size beside one of torchrun's",
       With(kTorchrun, {{"PMI_RANK", "x"}, {"OMPI_COMM_WORLD_RANK", "1"}}), Launcher::kTorchrun, 5,
       8, 1, "node0:1235", "abc", 2},
      {"srun --mpi=pmi2", With(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"PMI_FD", "9"}}),
       Launcher::kSlurm, 3, 4, 1, "gpu003:29500", "77.0", 0},
      {"an old MPICH, whose own step has other numbers",
       With(kSlurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"MASTER_ADDR", "m"}}), Launcher::kMpich,
       3, 8, none, "m:29500", "77", 0},
      {"empty variables are unset variables",
       With(kSlurm, {{"RANK", ""}, {"MASTER_ADDR", ""}, {"SLURM_STEP_NODELIST", ""}}),
       Launcher::kSlurm, 3, 4, 1, "gpu003:29500", "77.0", 0},
      {"OpenMPI on one host", kOpenMpi, Launcher::kOpenMpi, 2, 4, 2, "127.0.0.1:29500",
       "prterun-1@1", 0},
      {"OpenMPI on several hosts that nobody names",
       With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), Launcher::kOpenMpi, 2, 4, 2, none,
       "prterun-1@1", 0},
      {"OpenMPI in a Slurm job, whose SLURM_PROCID is the script's",
       Without(With(With(kSlurm, {{"SLURM_PROCID", "0"}}),
                    With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})),
               {"PMIX_NAMESPACE"}),
       Launcher::kOpenMpi, 2, 4, 2, "gpu003:29500", "77", 0},
      {"MPICH on one host", kMpich, Launcher::kMpich, 1, 2, 1, "127.0.0.1:29500", none, 0},
      {"MPICH in a Slurm job", With(kSlurm, With(kMpich, {{"MPI_LOCALNRANKS", "1"}})),
       Launcher::kMpich, 1, 2, 1, "gpu003:29500", "77", 0},
      {"MPICH with a master", With(kMpich, {{"MASTER_ADDR", "m"}, {"MASTER_PORT", "9"}}),
       Launcher::kMpich, 1, 2, 1, "m:9", none, 0},
  };
}

TEST(LaunchEnvironmentTest, EveryLauncherIsUnderstood) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const absl::StatusOr<LaunchEnvironment> found = Detect(c.variables);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->launcher, c.launcher);
    EXPECT_TRUE(found->rank == c.rank) << found->rank.value_or(-1);
    EXPECT_TRUE(found->world_size == c.world_size) << found->world_size.value_or(-1);
    EXPECT_TRUE(found->local_rank == c.local_rank) << found->local_rank.value_or(-1);
    EXPECT_EQ(found->master.value_or("none"), c.master.value_or("none"));
    EXPECT_EQ(found->run_id.value_or("none"), c.run_id.value_or("none"));
    EXPECT_EQ(found->attempt, c.attempt);
  }
}

struct BadCase {
  Variables variables;
  std::string variable;
  std::string expected;
  std::string found;
};

TEST(LaunchEnvironmentTest, GarbledAndContradictoryValuesAreNamed) {
  const std::vector<BadCase> cases = {
      {With(kTorchrun, {{"RANK", "8"}}), "RANK", "from 0 to 7", "\"8\""},
      {With(kTorchrun, {{"RANK", "-1"}}), "RANK", "from 0 to 7", "\"-1\""},
      {With(kTorchrun, {{"RANK", "one"}}), "RANK", "a whole number", "\"one\""},
      {With(kTorchrun, {{"RANK", "1x"}}), "RANK", "a whole number", "\"1x\""},
      {With(kTorchrun, {{"RANK", " 1"}}), "RANK", "a whole number", "\" 1\""},
      {With(kTorchrun, {{"RANK", "99999999999"}}), "RANK", "a whole number", "\"99999999999\""},
      {With(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE", "at least 1", "\"0\""},
      {Without(kTorchrun, {"WORLD_SIZE"}), "WORLD_SIZE", "as RANK is set", "nothing"},
      {With(kTorchrun, {{"LOCAL_RANK", "8"}}), "LOCAL_RANK", "from 0 to 7", "\"8\""},
      {With(kTorchrun, {{"MASTER_PORT", "70000"}}), "MASTER_PORT", "from 1 to 6553", "\"70000\""},
      {With(kTorchrun, {{"MASTER_PORT", "65535"}}), "MASTER_PORT", "from 1 to 65534", "\"65535\""},
      {With(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT", "from 1", "\"0\""},
      {With(kTorchrun, {{"MASTER_ADDR", "a b"}}), "MASTER_ADDR", "a host name", "\"a b\""},
      {With(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "x"}}), "TORCHELASTIC_RESTART_COUNT",
       "at least 0", "\"x\""},
      {With(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "1"}}), "TORCHELASTIC_USE_AGENT_STORE",
       "True or False", "\"1\""},
      {With(kSlurm, {{"SLURM_PROCID", "4"}}), "SLURM_PROCID", "from 0 to 3", "\"4\""},
      {Without(kSlurm, {"SLURM_NTASKS"}), "SLURM_NTASKS", "as SLURM_PROCID is set", "nothing"},
      {With(kSlurm, {{"SLURM_NTASKS", "four"}}), "SLURM_NTASKS", "a whole number", "\"four\""},
      {With(kSlurm, {{"SLURM_JOB_NODELIST", "gpu[3"}}), "SLURM_JOB_NODELIST", "host names",
       "\"gpu[3\""},
      {With(kSlurm, {{"WORLD_SIZE", "8"}}), "WORLD_SIZE", "4, as SLURM_NTASKS says", "8"},
      {With(kSlurm, {{"SLURM_RESTART_COUNT", "?"}}), "SLURM_RESTART_COUNT", "at least 0", "\"?\""},
      {With(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "4"}}), "OMPI_COMM_WORLD_RANK", "from 0 to 3",
       "\"4\""},
      {Without(kOpenMpi, {"OMPI_COMM_WORLD_SIZE"}), "OMPI_COMM_WORLD_SIZE", "is set", "nothing"},
      {With(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "5"}}), "OMPI_COMM_WORLD_LOCAL_SIZE",
       "from 1 to 4", "\"5\""},
      {With(kOpenMpi, {{"WORLD_SIZE", "3"}}), "WORLD_SIZE", "4, as OMPI_COMM_WORLD_SIZE says", "3"},
      {With(kMpich, {{"PMI_SIZE", "1"}}), "PMI_RANK", "from 0 to 0", "\"1\""},
      {With(kMpich, {{"MPI_LOCALRANKID", "q"}}), "MPI_LOCALRANKID", "from 0 to 1", "\"q\""},
      // Trained alone.
      {Without(kTorchrun, {"RANK"}), "RANK", "as WORLD_SIZE and LOCAL_RANK are set", "nothing"},
      {Without(kOpenMpi, {"OMPI_COMM_WORLD_RANK"}), "OMPI_COMM_WORLD_RANK",
       "as OMPI_COMM_WORLD_SIZE is set", "nothing"},
      {{{"OMPI_COMM_WORLD_SIZE", "4"}}, "OMPI_COMM_WORLD_RANK", "is set", "nothing"},
      {{{"PMI_SIZE", "2"}}, "PMI_RANK", "as PMI_SIZE is set", "nothing"},
      {{{"PMI_SIZE", "two"}}, "PMI_RANK", "as PMI_SIZE is set", "nothing"},
      {With(kMpich, {{"MASTER_PORT", "tcp://10.96.0.1:6379"}}), "MASTER_PORT",
       "from 1 to 65535, found \"tcp://10.96.0.1:6379\"", "Kubernetes sets it for a service named"},
  };
  for (const BadCase& c : cases) {
    const absl::Status status = Detect(c.variables).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.variable << ": " << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(c.variable + ":"), HasSubstr(c.expected), HasSubstr(c.found)));
  }
}

TEST(LaunchEnvironmentTest, ABatchScriptOfSeveralTasksIsToldThatItStartsNone) {
  const auto script = Without(With(kSlurm, {{"SLURM_PROCID", "0"}}), {"SLURM_STEP_ID"});
  EXPECT_THAT(Detect(script)->notice, AllOf(HasSubstr("SLURM_NTASKS=4"), HasSubstr("srun")));
  EXPECT_EQ(Detect(With(script, {{"SLURM_NTASKS", "1"}}))->notice, "");
  EXPECT_EQ(Detect(Without(script, {"SLURM_NTASKS"}))->notice, "");
  EXPECT_EQ(Detect(kSlurm)->notice, "");
  EXPECT_EQ(Detect({{"SLURM_NTASKS", "9"}})->notice, "");
}

TEST(LaunchEnvironmentTest, ASizeWithoutARankIsANotice) {
  EXPECT_EQ(Detect({{"WORLD_SIZE", "4"}})->notice,
            "WORLD_SIZE=4 is set, but no RANK: this process trains alone");
  for (const Variables& quiet :
       {Variables{{"WORLD_SIZE", "1"}}, Variables{{"WORLD_SIZE", "x"}},
        Variables{{"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}}, Variables{{"PMI_SIZE", "1"}},
        Variables{{"LOCAL_RANK", "1"}}, With(kSlurm, {{"WORLD_SIZE", "4"}})}) {
    ASSERT_TRUE(Detect(quiet).ok()) << Detect(quiet).status();
    EXPECT_EQ(Detect(quiet)->notice, "");
  }
  // A set without a rank is passed over where another is complete.
  const auto slurm = Detect(With(kSlurm, {{"PMI_SIZE", "2"}, {"OMPI_COMM_WORLD_SIZE", "2"}}));
  ASSERT_TRUE(slurm.ok()) << slurm.status();
  EXPECT_EQ(slurm->launcher, Launcher::kSlurm);
  EXPECT_EQ(slurm->notice, "");
}

// Each of mpirun's processes trained alone, as rank 0 of 1, in a shell of torchrun's or PyTorchJob's.
TEST(LaunchEnvironmentTest, TheSetOfOneWorkerYieldsToALaterOneOfSeveral) {
  const Variables alone = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  const auto mpi = Detect(With(kOpenMpi, alone));
  ASSERT_TRUE(mpi.ok()) << mpi.status();
  EXPECT_EQ(mpi->launcher, Launcher::kOpenMpi);
  EXPECT_EQ(mpi->rank, 2);
  EXPECT_EQ(mpi->world_size, 4);
  EXPECT_EQ(mpi->notice,
            "WORLD_SIZE=1 and OMPI_COMM_WORLD_SIZE=4 contradict each other: this process goes by "
            "the variables of Open MPI; --world_size=1 says that one worker is meant");
  EXPECT_EQ(Detect(With(kMpich, alone))->launcher, Launcher::kMpich);
  EXPECT_EQ(Detect(With(kSlurm, alone))->launcher, Launcher::kSlurm);
  // mpirun -n 1 in a step of Slurm, and torchruns of one worker in tasks of MPI.
  EXPECT_EQ(Detect(With(kSlurm, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}))->launcher,
            Launcher::kMpich);
  const auto torchrun = Detect(
      With(kOpenMpi, With(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}})));
  ASSERT_TRUE(torchrun.ok()) << torchrun.status();
  EXPECT_EQ(torchrun->launcher, Launcher::kTorchrun);
  // Each task of a step trained alone where mpirun -n 1 had started what called srun.
  for (const Variables& one :
       {Variables{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
        Variables{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}}) {
    const auto task =
        Detect(With(kSlurm, With(one, {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}})));
    ASSERT_TRUE(task.ok()) << task.status();
    EXPECT_EQ(task->launcher, Launcher::kSlurm);
    EXPECT_EQ(task->world_size, 4);
    EXPECT_THAT(task->notice, HasSubstr("SIZE=1 and SLURM_STEP_NUM_TASKS=4 contradict each other"));
  }
  // What is garbled or incomplete counts for nothing.
  EXPECT_EQ(Detect(With(alone, {{"PMI_SIZE", "2"}}))->launcher, Launcher::kTorchrun);
  EXPECT_EQ(Detect(With(kMpich, With(alone, {{"PMI_SIZE", "x"}})))->launcher, Launcher::kTorchrun);
}

TEST(LaunchEnvironmentTest, OtherContradictionsKeepTheOrderWithANotice) {
  const auto two = Detect(With(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
  EXPECT_EQ(two->launcher, Launcher::kTorchrun);
  EXPECT_THAT(two->notice, AllOf(HasSubstr("WORLD_SIZE=2 and OMPI_COMM_WORLD_SIZE=4"),
                                 HasSubstr("by the variables of torchrun")));
  // Jobs of one worker, each in a task of its own.
  const auto sweep = Detect(With(
      kSlurm,
      With(kTorchrun,
           {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}})));
  EXPECT_EQ(sweep->launcher, Launcher::kTorchrun);
  EXPECT_EQ(sweep->world_size, 1);
  EXPECT_THAT(sweep->notice, HasSubstr("WORLD_SIZE=1 and SLURM_NTASKS=4 contradict each other"));
  // One torchrun for each task, or a step of MPI's own, is none.
  const auto nested = Detect(With(kSlurm, With(kTorchrun, {{"LOCAL_WORLD_SIZE", "2"}})));
  EXPECT_EQ(nested->launcher, Launcher::kTorchrun);
  EXPECT_EQ(nested->notice, "");
  EXPECT_EQ(Detect(With(kSlurm, kMpich))->notice, "");
  EXPECT_EQ(Detect(With(kOpenMpi, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}))->notice, "");
  // All tasks had one rank, and rank 1 was told that its --master is another host's.
  EXPECT_EQ(Detect(With(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}}))->notice,
            "RANK=0 and OMPI_COMM_WORLD_RANK=2 contradict each other: this process goes by RANK");
  EXPECT_EQ(
      Detect(With(kOpenMpi, {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"TORCHELASTIC_RUN_ID", "j"}}))
          ->notice,
      "");
}

// In salloc's shell, a step of one task, nothing was said of the tasks that were asked for.
TEST(LaunchEnvironmentTest, TheShellOfSallocIsNoTask) {
  const auto shell = Detect({{"SLURM_JOB_ID", "56"},
                             {"SLURM_STEP_ID", "4294967290"},
                             {"SLURM_STEP_NUM_TASKS", "1"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_NTASKS", "2"}});
  ASSERT_TRUE(shell.ok()) << shell.status();
  EXPECT_EQ(shell->launcher, Launcher::kNone);
  EXPECT_THAT(shell->notice, HasSubstr("SLURM_NTASKS=2 but this process is no task of a step"));
}

// Kubernetes sets MASTER_PORT for a service that is named master, and one worker was refused.
TEST(LaunchEnvironmentTest, OneWorkersMasterIsReadOnlyIfItIsOne) {
  const Variables alone = {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "m"}};
  EXPECT_EQ(Detect(With(alone, {{"MASTER_PORT", "7001"}}))->master, "m:7001");  // it has servers
  for (const char* port : {"tcp://10.96.0.1:6379", "99999", "x"}) {
    const auto found = Detect(With(alone, {{"MASTER_PORT", port}}));
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->master, absl::nullopt);
  }
  EXPECT_TRUE(Detect(With(alone, {{"MASTER_ADDR", "a b"}})).ok());
  EXPECT_TRUE(Detect(With(kSlurm, {{"SLURM_PROCID", "0"},
                                   {"SLURM_LOCALID", "0"},
                                   {"SLURM_NTASKS", "1"},
                                   {"SLURM_JOB_NODELIST", "gpu[3"}}))
                  .ok());
}

TEST(LaunchEnvironmentTest, FlagsSayAllOfAWorkerAloneOrWithRankSizeAndStore) {
  EXPECT_TRUE(SaysAll(1, 2, "a:1"));
  EXPECT_TRUE(SaysAll(0, 1, ""));
  EXPECT_TRUE(SaysAll(absl::nullopt, 1, ""));
  EXPECT_FALSE(SaysAll(1, 1, "a:1"));
  EXPECT_FALSE(SaysAll(1, 2, ""));
  EXPECT_FALSE(SaysAll(0, absl::nullopt, "a:1"));
  EXPECT_FALSE(SaysAll(absl::nullopt, 2, "a:1"));
  EXPECT_FALSE(SaysAll(absl::nullopt, absl::nullopt, ""));
}

TEST(LaunchEnvironmentTest, EveryVariableThatIsReadIsALaunchersButThoseOfTheJobAsAWhole) {
  for (const Variables& variables : {kTorchrun, kSlurm, kOpenMpi, kMpich}) {
    for (const auto& [name, value] : variables) {
      EXPECT_EQ(IsLauncherVariable(name), name != "SLURM_JOB_ID") << name;
    }
  }
  for (const char* name : {"PATH", "HOME", "SLURM_SUBMIT_DIR", "SLURM_CONF", "OMPI_MCA_btl",
                           "MASTER", "GRADSYNC_JOB_KEY", "RANKS"}) {
    EXPECT_FALSE(IsLauncherVariable(name)) << name;
  }
}

TEST(LaunchEnvironmentTest, HowManyWorkersTheHostHasIsReadWhereTheLauncherSaysIt) {
  EXPECT_EQ(Detect(kTorchrun)->local_size, absl::nullopt);
  EXPECT_EQ(Detect(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "4"}}))->local_size, 4);
  EXPECT_EQ(Detect(kOpenMpi)->local_size, 4);
  EXPECT_EQ(Detect(kMpich)->local_size, 2);
  EXPECT_EQ(Detect(With(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}})).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Two jobs at a time on one host had no id to tell them apart: ranks of one trained with the other.
TEST(LaunchEnvironmentTest, TheLaunchersProcessNamesAJobOfMpich) {
  const auto detect = [](const Variables& variables) {
    return DetectLaunchEnvironment(
        [&](absl::string_view name) {
          const auto found = variables.find(std::string(name));
          return found == variables.end() ? absl::nullopt
                                          : absl::optional<std::string>(found->second);
        },
        [](absl::string_view mark, bool on_one_host) {
          return std::string(mark) + (on_one_host ? " on one host" : " on several");
        });
  };
  EXPECT_EQ(detect(kMpich)->run_id, "PMI_RANK on one host");
  EXPECT_EQ(detect(With(kMpich, {{"MPI_LOCALNRANKS", "1"}}))->run_id, "PMI_RANK on several");
  EXPECT_EQ(detect(With(kMpich, {{"SLURM_JOB_ID", "77"}}))->run_id, "77.PMI_RANK on one host");
  EXPECT_EQ(detect(With(kMpich, {{"I_MPI_HYDRA_UUID", "u"}}))->run_id, "u");
  EXPECT_EQ(detect(kOpenMpi)->run_id, "prterun-1@1");
  EXPECT_EQ(detect(kSlurm)->run_id, "77.0");
}

}  // namespace
}  // namespace gradsync
