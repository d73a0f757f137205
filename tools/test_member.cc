// Stands in for //worker and //ps_server in tests of what starts and stops them. One member, the
// victim, behaves as --victim_does says once the others are up; the others as --others_do says.
//
// Behaviours: exit:N, late:N (exits half a second later), fail:N (says on stderr that it lost
// somebody, then exits), report:N (the same as JSON), signal:N (raises it), drain:N (hangs; on a
// signal says that it has no checkpoint, unless N is 128 and more, and exits), hang, headless (hangs without
// its first thread), stubborn (hangs and ignores SIGTERM), lines:N (prints N lines, the odd ones on
// stderr, then exits), silent (never writes --port_file), done (exits with 0 before it would), tell:NAME
// (prints that variable of its environment, then exits).

#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/base/process_main.h"
#include "core/base/write_file.h"
#include "core/program/flags.h"

ABSL_FLAG(std::string, listen, "", "makes this a server");
ABSL_FLAG(std::string, topology, "local", "printed");
ABSL_FLAG(std::vector<std::string>, servers, {}, "their number is printed");
ABSL_FLAG(int, rank, -1, "of this worker");
ABSL_FLAG(int, world_size, -1, "number of workers");
ABSL_FLAG(std::string, master, "", "printed");
ABSL_FLAG(std::string, port_file, "", "written by servers and rank 0");
ABSL_FLAG(std::string, metrics_json, "", "gets the member's name");
ABSL_FLAG(int, threads, 0, "printed");
ABSL_FLAG(absl::Duration, timeout, absl::ZeroDuration(), "ignored");
ABSL_FLAG(absl::Duration, failure_timeout, absl::ZeroDuration(), "ignored");
ABSL_FLAG(int, attempt, 0, "printed, if there is one");
ABSL_FLAG(std::string, victim, "", "name of a member: worker0, ..., or server for all servers");
ABSL_FLAG(std::string, victim_does, "exit:0", "behaviour");
ABSL_FLAG(std::string, others_do, "exit:0", "behaviour");

namespace gradsync {
namespace {

// Ends the process as a worker does that was told to end.
[[noreturn]] void Drain(int code) {
  sigset_t told;
  sigemptyset(&told);
  for (int signal : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) sigaddset(&told, signal);
  sigprocmask(SIG_BLOCK, &told, nullptr);
  std::printf("up\n");
  std::fflush(stdout);
  int signal = 0;
  sigwait(&told, &signal);
  if (code < 128) std::fprintf(stderr, "worker: PERMISSION_DENIED: no checkpoint in /\n");
  std::exit(code);
}

[[noreturn]] void Hang() {
  while (true) pause();
}

int Behave(const std::string& behaviour) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(behaviour, ':');
  if (parts.first == "tell") {
    execl("/usr/bin/printenv", "printenv", parts.second.c_str(), nullptr);
    return 99;
  }
  int number = 0;
  if (!parts.second.empty() && !absl::SimpleAtoi(parts.second, &number)) return 99;
  if (parts.first == "exit") return number;
  if (parts.first == "late") {
    usleep(500000);
    return number;
  }
  if (parts.first == "fail") {
    std::fprintf(stderr, "rank 1 lost\n");
    return number;
  }
  if (parts.first == "report") {
    SetLog({LogFormat::kJson, /*rank=*/0, /*server=*/-1, /*step=*/nullptr});
    PrintError("worker", "ABORTED: rank 1 lost: \"gone\"");
    return number;
  }
  if (parts.first == "signal") {
    std::fprintf(stderr, "about to die\n");
    raise(number);
  }
  if (parts.first == "drain") Drain(number);
  if (parts.first == "headless") {
    std::thread(Hang).detach();
    pthread_exit(nullptr);
  }
  if (parts.first == "lines") {
    for (int i = 0; i < number; ++i) std::fprintf(i % 2 == 0 ? stdout : stderr, "line %d\n", i);
    return 0;
  }
  if (parts.first == "stubborn") std::signal(SIGTERM, SIG_IGN);
  if (parts.first == "stubborn" || parts.first == "hang" || parts.first == "silent") {
    std::printf("up\n");
    std::fflush(stdout);
    Hang();
  }
  return 99;
}

int RunMember() {
  const bool is_server = !absl::GetFlag(FLAGS_listen).empty();
  const int rank = absl::GetFlag(FLAGS_rank);
  const std::string name = is_server ? "server" : absl::StrCat("worker", rank);
  const std::string behaviour = name == absl::GetFlag(FLAGS_victim)
                                    ? absl::GetFlag(FLAGS_victim_does)
                                    : absl::GetFlag(FLAGS_others_do);
  if (behaviour == "done") {
    std::printf("done\n");
    return 0;
  }
  if ((is_server || rank == 0) && behaviour != "silent") {
    const std::string address = is_server ? "127.0.0.1:1111\n" : "127.0.0.1:2222\n";
    if (!WriteFileAtomically(absl::GetFlag(FLAGS_port_file), address).ok()) return 99;
  }
  if (!absl::GetFlag(FLAGS_metrics_json).empty() &&
      !WriteFileAtomically(absl::GetFlag(FLAGS_metrics_json), name).ok()) {
    return 99;
  }
  std::printf("%s of %d topology %s master %s servers %s threads %d\n", name.c_str(),
              absl::GetFlag(FLAGS_world_size), absl::GetFlag(FLAGS_topology).c_str(),
              absl::GetFlag(FLAGS_master).c_str(),
              absl::StrJoin(absl::GetFlag(FLAGS_servers), "+").c_str(),
              absl::GetFlag(FLAGS_threads));
  if (absl::GetFlag(FLAGS_attempt) > 0) std::printf("attempt %d\n", absl::GetFlag(FLAGS_attempt));
  std::fflush(stdout);
  return Behave(behaviour);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::ParseFlagsOrExit(argc, argv);
  return gradsync::RunMember();
}
