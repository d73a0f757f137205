// Becomes one process of a job that a launcher of several hosts starts, so that one line starts
// workers and parameter servers. Copy and try, where there is Slurm or MPI:
//
//   srun -n 6 bazel-bin/tools/task --servers=2 -- --topology=ps --model=mlp --steps=20
//   mpirun -n 6 bazel-bin/tools/task --servers=2 -- --topology=ps --model=mlp --steps=20
//   srun -n 4 bazel-bin/tools/task -- --topology=ring --model=mlp --steps=20
//
// Of the launcher's tasks the last --servers become servers, the others workers
// (core/group/launch_environment.h). This process is replaced by the other program, so signals and exit
// codes are that one's.

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/group/launch_environment.h"
#include "core/program/flags.h"
#include "core/program/last_words.h"
#include "core/program/program_main.h"
#include "core/program/version.h"
#include "tools/subprocess.h"
#include "tools/worker_flags.h"

ABSL_FLAG(
    int, servers, 0,
    "how many of the launcher's tasks are parameter servers: the last ones; with any, workers "
    "get --topology=ps");
ABSL_FLAG(
    absl::Duration, timeout, absl::Seconds(60),
    "time limit that all processes get as --timeout; a job file's counts if this is not given");
ABSL_FLAG(std::string, worker_binary, "",
          "program that workers run; empty: the //worker of this build");
ABSL_FLAG(std::string, server_binary, "",
          "program that servers run; empty: the //ps_server of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "task [--servers=K] -- [worker flags]: becomes a worker or, as one of the last K tasks that "
    "srun, mpirun or torchrun counts, a parameter server";

absl::StatusOr<std::string> Program(const char* argv0, const std::string& flag,
                                    const std::string& runfile) {
  if (!flag.empty()) return UserPath(flag);
  return FindRunfile(argv0, runfile);
}

// The command line of what this process is to become.
absl::StatusOr<std::vector<std::string>> Command(const char* argv0, const ParsedFlags& parsed) {
  GS_ASSIGN_OR_RETURN(const WorkerFlags flags, ReadWorkerFlags(parsed.positional));
  if (absl::GetFlag(FLAGS_worker_binary).empty()) {
    GS_RETURN_IF_ERROR(CheckNoneIsOwn(flags.words, parsed.flags));
  }
  const int servers = absl::GetFlag(FLAGS_servers);
  if (absl::GetFlag(FLAGS_timeout) <= absl::ZeroDuration()) {
    return FlagError("timeout", "more than 0s", absl::FormatDuration(absl::GetFlag(FLAGS_timeout)));
  }
  if (servers < 0) return FlagError("servers", "at least 0", absl::StrCat(servers));
  GS_ASSIGN_OR_RETURN(const LaunchEnvironment environment,
                      DetectLaunchEnvironment(EnvironmentVariable));
  if (!environment.rank.has_value()) {
    return absl::InvalidArgumentError(
        "expected srun, mpirun or torchrun to have started this, found none of them; tools/launch "
        "starts jobs of one machine by itself");
  }
  TaskRole role;
  if (servers > 0) {
    GS_ASSIGN_OR_RETURN(role, RoleOfTask(environment, servers, "servers"));
  }
  std::vector<std::string> command;
  if (role.is_server) {
    GS_ASSIGN_OR_RETURN(command.emplace_back(),
                        Program(argv0, absl::GetFlag(FLAGS_server_binary), "ps_server/ps_server"));
  } else {
    GS_ASSIGN_OR_RETURN(command.emplace_back(),
                        Program(argv0, absl::GetFlag(FLAGS_worker_binary), "worker/worker"));
  }
  const std::string timeout = absl::FormatDuration(absl::GetFlag(FLAGS_timeout));
  const bool given = parsed.Sets("timeout");
  const auto add = [&command](const std::vector<std::string>& words) {
    command.insert(command.end(), words.begin(), words.end());
  };
  if (servers > 0) command.push_back(absl::StrCat("--server_tasks=", servers));
  if (role.is_server) {
    add(flags.TimeoutOfServers(timeout, given));
    add(flags.FailureTimeoutOfServers());
    add(flags.SecurityOfServers());
    return command;
  }
  if (servers > 0) command.push_back("--topology=ps");
  add(flags.TimeoutOfWorkers(timeout, given));
  add(flags.words);
  return command;
}

int Become(const char* argv0, const ParsedFlags& parsed) {
  const absl::StatusOr<std::vector<std::string>> command = Command(argv0, parsed);
  if (!command.ok()) {
    PrintError("task", command.status().message());
    return 2;
  }
  std::vector<char*> argv;
  for (const std::string& word : *command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  PrintError("task", absl::StrCat(argv[0], ": ", std::strerror(errno)));
  return 1;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::SayWhyItEnds();
  gradsync::FlagOptions options;
  options.usage = gradsync::kUsage;
  options.aliases = {{"server", "servers"}};
  options.passed_on = gradsync::FlagsBehindDashes();
  options.given = gradsync::FlagsOfOneWorker();
  options.version = gradsync::VersionText("task");
  const gradsync::ParsedFlags flags = gradsync::ParseFlagsWithOriginsOrExit(argc, argv, options);
  return gradsync::Become(argv[0], flags);
}
