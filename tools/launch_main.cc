// Runs one training job on this machine. Copy and try:
//
//   bazel run //tools:launch -- --workers=2 --servers=1 -- --model=mlp --steps=20
//   bazel run //tools:launch -- --workers=2 -- --topology=ring --model=mlp --steps=20
//
// Every line that a process prints comes with its name in front. When one fails, the rest is
// stopped, and the exit code is that of the first failure; with --max_restarts=N all are started
// again, up to N times, unless the flags were wrong (exit code 2). A worker then goes on from its
// checkpoint if its flags say so:
//
//   bazel run //tools:launch -- --workers=2 --max_restarts=3 -- --topology=ring --model=mlp --steps=200 --checkpoint=/tmp/job --checkpoint_every=50 --resume=auto

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/program/flags.h"
#include "core/program/last_words.h"
#include "core/program/program_main.h"
#include "core/program/version.h"
#include "tools/local_job.h"
#include "tools/subprocess.h"
#include "tools/worker_flags.h"

ABSL_FLAG(int, workers, 1, "number of worker processes");
ABSL_FLAG(int, servers, 0, "number of parameter servers; with any, workers get --topology=ps");
ABSL_FLAG(
    absl::Duration, timeout, absl::Seconds(60),
    "time limit that all processes get as --timeout; a job file's counts if this is not given");
ABSL_FLAG(int, max_restarts, 0,
          "how often all processes are started again after one has failed; see --resume=auto of "
          "//worker");
ABSL_FLAG(
    absl::Duration, grace, absl::Seconds(30),
    "how long processes have after a signal such as SIGTERM, SIGHUP or SIGUSR1, which they are "
    "passed, to finish their step, write their checkpoint and end; a second one kills them at "
    "once");
ABSL_FLAG(std::string, worker_binary, "",
          "program that workers run; empty: the //worker of this build");
ABSL_FLAG(std::string, server_binary, "",
          "program that servers run; empty: the //ps_server of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "launch --workers=N [--servers=K] -- [worker flags]: runs one training job on this machine";

// Exit code of a process whose flags or input are wrong: they would be so again.
constexpr int kBadInput = 2;

absl::Status CheckCount(absl::string_view flag, int minimum, int found) {
  if (found >= minimum) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected at least ", minimum, ", found ", found));
}

absl::StatusOr<LocalJobOptions> JobFromFlags(const char* argv0, const ParsedFlags& parsed) {
  LocalJobOptions job;
  job.workers = absl::GetFlag(FLAGS_workers);
  job.servers = absl::GetFlag(FLAGS_servers);
  GS_RETURN_IF_ERROR(CheckCount("workers", 1, job.workers));
  GS_RETURN_IF_ERROR(CheckCount("servers", 0, job.servers));
  GS_ASSIGN_OR_RETURN(const WorkerFlags flags, ReadWorkerFlags(parsed.positional));
  GS_RETURN_IF_ERROR(CheckCount("max_restarts", 0, absl::GetFlag(FLAGS_max_restarts)));
  job.drain = absl::GetFlag(FLAGS_grace);
  if (job.drain < absl::ZeroDuration()) {
    return FlagError("grace", "a time of at least 0", absl::FormatDuration(job.drain));
  }
  if (absl::GetFlag(FLAGS_timeout) <= absl::ZeroDuration()) {
    return FlagError("timeout", "more than 0s", absl::FormatDuration(absl::GetFlag(FLAGS_timeout)));
  }
  job.worker_binary = UserPath(absl::GetFlag(FLAGS_worker_binary));
  job.server_binary = UserPath(absl::GetFlag(FLAGS_server_binary));
  if (job.worker_binary.empty()) {
    GS_RETURN_IF_ERROR(CheckNoneIsOwn(flags.words, parsed.flags));
    GS_RETURN_IF_ERROR(CheckNoneIsOfOneWorker(flags.words, job.workers, job.servers));
    job.tell_local_rank = true;
    job.may_end_at_once = true;
    GS_ASSIGN_OR_RETURN(job.worker_binary, FindRunfile(argv0, "worker/worker"));
  }
  if (job.server_binary.empty() && job.servers > 0) {
    GS_ASSIGN_OR_RETURN(job.server_binary, FindRunfile(argv0, "ps_server/ps_server"));
  }
  const std::string timeout = absl::FormatDuration(absl::GetFlag(FLAGS_timeout));
  const bool given = parsed.Sets("timeout");
  job.server_flags = flags.TimeoutOfServers(timeout, given);
  for (const std::string& flag : flags.FailureTimeoutOfServers()) {
    job.server_flags.push_back(flag);
  }
  for (const std::string& flag : flags.SecurityOfServers()) job.server_flags.push_back(flag);
  // The others notice before, where there are any, and say more.
  job.stopped = flags.FailureTimeout() + absl::Seconds(1);
  // Rank 0 ends when the others have left, or after it has waited for them (gradsync/join/meet.h).
  if (flags.Synchronised(job.servers)) job.outlive = flags.FailureTimeout() + absl::Seconds(5);
  job.worker_flags = flags.TimeoutOfWorkers(timeout, given);
  if (!flags.Has("threads")) {
    const int cores = AvailableCores();
    job.worker_flags.push_back(absl::StrCat("--threads=", std::max(1, cores / job.workers)));
  }
  job.worker_flags.insert(job.worker_flags.end(), flags.words.begin(), flags.words.end());
  return job;
}

// "[worker 1]  ", as wide as the widest name of the job.
std::string Prefix(const LocalJobOptions& job, absl::string_view process) {
  const size_t width =
      std::string("[worker ]").size() + absl::StrCat(std::max(job.workers, job.servers) - 1).size();
  std::string prefix = absl::StrCat("[", process, "]");
  prefix.resize(std::max(prefix.size(), width), ' ');
  return prefix;
}

void PrintLines(LocalJobOptions* job) {
  job->on_line = [job](absl::string_view process, absl::string_view line, bool is_stderr) {
    std::FILE* out = is_stderr ? stderr : stdout;
    std::fprintf(out, "%s %.*s\n", Prefix(*job, process).c_str(), static_cast<int>(line.size()),
                 line.data());
    std::fflush(out);
  };
  job->on_start = [job](absl::string_view process, int pid) {
    std::printf("%s started, pid %d\n", Prefix(*job, process).c_str(), pid);
    std::fflush(stdout);
  };
  job->on_failure = [](absl::string_view failure) {
    PrintError("launch", absl::StrCat(failure, "; stopping the rest"));
  };
}

int Launch(const char* argv0, const ParsedFlags& parsed) {
  absl::StatusOr<LocalJobOptions> job = JobFromFlags(argv0, parsed);
  if (!job.ok()) {
    PrintError("launch", job.status().message());
    return kBadInput;
  }
  PrintLines(&*job);
  job->interrupt = &InterruptSignal();
  job->interrupts = &InterruptCount();
  CatchInterrupts();
  const int max_restarts = absl::GetFlag(FLAGS_max_restarts);
  while (true) {
    const absl::StatusOr<LocalJobResult> result = RunLocalJob(*job);
    if (!result.ok()) {
      PrintError("launch", result.status().message());
      return absl::IsInvalidArgument(result.status()) ? kBadInput : 1;
    }
    if (!result->drain_failure.empty()) {
      PrintError("launch",
                 absl::StrCat("the job did not end in good order: ", result->drain_failure));
    }
    const bool again = result->exit_code != 0 && result->exit_code != kBadInput &&
                       *job->interrupt == 0 && job->attempt < max_restarts;
    if (!again) return result->exit_code;
    ++job->attempt;
    PrintError("launch", absl::StrCat("restart ", job->attempt, " of ", max_restarts));
  }
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::SayWhyItEnds();
  gradsync::FlagOptions options;
  options.usage = gradsync::kUsage;
  options.aliases = {{"worker", "workers"}, {"server", "servers"}};
  options.passed_on = gradsync::FlagsBehindDashes();
  options.given = gradsync::FlagsOfOneWorker();
  options.version = gradsync::VersionText("launch");
  const gradsync::ParsedFlags flags = gradsync::ParseFlagsWithOriginsOrExit(argc, argv, options);
  gradsync::OutliveReaders();
  return gradsync::ExitCode("launch", gradsync::Launch(argv[0], flags));
}
