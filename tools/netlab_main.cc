// Hosts on an emulated network on this machine, for trying things by hand. Copy and try:
//
//   bazel run //tools:netlab -- --hosts=3 --bandwidth=400mbit           # a shell on host 0
//   bazel run //tools:netlab -- --hosts=2 -- ping -c 3 10.77.0.2
//
// Exit codes: that of the command; 2 bad flags, or no way to make hosts; 127 no such command; 128 +
// signal when the command was killed.

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/program/byte_sizes.h"
#include "core/program/flags.h"
#include "tools/lab_flags.h"
#include "tools/network_lab.h"

ABSL_FLAG(int, hosts, 3, "number of hosts, whose addresses are 10.77.0.1 and on");
ABSL_FLAG(std::string, bandwidth, "",
          "what each host's link carries, each way, such as 400mbit; empty: no cap");
ABSL_FLAG(int, host, 0, "number of the host on which the command runs, from 0");
ABSL_FLAG(int, enter, -1,
          "inside a lab: number of the host of it on which the command runs; -1: make a new lab");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "netlab [flags] [-- command ...]: runs a command, or a shell, on a host of an emulated "
    "network\n\n"
    "Hosts are 10.77.0.1, 10.77.0.2, ...; the command runs on the first one (--host). From "
    "inside, another host is entered with\n"
    "    netlab --enter=1 -- command        or    nsenter --net=/proc/1/fd/101 command\n"
    "A job by hand, in the shell of netlab --hosts=3 --bandwidth=400mbit:\n"
    "    netlab --enter=2 -- ps_server --listen=10.77.0.3:7000 --insecure &\n"
    "    netlab --enter=1 -- worker --rank=1 --world_size=2 --master=10.77.0.1:7001 "
    "--topology=ps --servers=10.77.0.3:7000 --model=mlp --steps=20 --insecure &\n"
    "    worker --rank=0 --world_size=2 --master=10.77.0.1:7001 "
    "--topology=ps --servers=10.77.0.3:7000 --model=mlp --steps=20 --insecure\n"
    "(bazel-bin/tools/netlab, bazel-bin/worker/worker, bazel-bin/ps_server/ps_server). When the "
    "command ends, or netlab is\nkilled, every process inside is killed and the network is gone. "
    "Needs iproute2, and root or user namespaces.";

constexpr int kBadInput = 2;
constexpr int kNotFound = 127;

// Process 1 inside has host i's network namespace as descriptor kFirstHost + i.
constexpr int kFirstHost = 100;

std::string HostPath(int host) { return absl::StrCat("/proc/1/fd/", kFirstHost + host); }

int Complain(int exit_code, absl::string_view message) {
  PrintError("netlab", message);
  return exit_code;
}

absl::StatusOr<NetworkLabOptions> LabAsAsked() {
  NetworkLabOptions options = LabFromFlags();
  options.hosts = absl::GetFlag(FLAGS_hosts);
  const int host = absl::GetFlag(FLAGS_host);
  if (host < 0 || host >= options.hosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("--host: expected 0 to ", options.hosts - 1, ", found ", host));
  }
  if (absl::GetFlag(FLAGS_bandwidth).empty()) return options;
  const absl::StatusOr<double> rate = ParseBandwidth(absl::GetFlag(FLAGS_bandwidth));
  if (!rate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--bandwidth: ", rate.status().message()));
  }
  options.bytes_per_second = *rate;
  return options;
}

// `bazel run` starts programs elsewhere than where the user is.
void GoToTheUser() {
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");
  if (folder != nullptr && chdir(folder) != 0) std::perror("netlab: chdir");
}

std::vector<std::string> OrShell(std::vector<std::string> command) {
  if (!command.empty()) return command;
  const char* shell = std::getenv("SHELL");
  return {shell == nullptr || *shell == '\0' ? "/bin/sh" : shell};
}

[[noreturn]] void Exec(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(Complain(kNotFound, absl::StrCat(command[0], ": ", std::strerror(errno))));
}

// As a shell reports how a process ended.
int ShellCode(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Process 1 of the lab: the kernel kills all others when it ends, and it ends with netlab.
[[noreturn]] void BeProcessOne(const std::vector<std::string>& command) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 1);  // so that /proc/1/fd can be read
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("proc", "/proc", "proc", 0, nullptr) != 0) {
    _exit(Complain(kBadInput, absl::StrCat("cannot mount /proc for the lab (", std::strerror(errno),
                                           "): run it as root")));
  }
  const pid_t pid = fork();
  if (pid == 0) {
    for (int signal : {SIGINT, SIGQUIT}) std::signal(signal, SIG_DFL);
    Exec(command);
  }
  int status = 0;
  for (pid_t ended = 0; ended != pid;) {
    ended = waitpid(-1, &status, 0);
    if (ended < 0 && errno != EINTR) _exit(1);
  }
  _exit(ShellCode(status));
}

// In process 1, for the lab itself needs its descriptors where they are. In two goes, since some of
// the lab's may be where the hosts' are to be.
void NumberHosts(const NetworkLab& lab) {
  const int hosts = lab.options().hosts;
  std::vector<int> copies;
  for (int host = 0; host < hosts; ++host) {
    copies.push_back(fcntl(lab.inside(host).network, F_DUPFD_CLOEXEC, kFirstHost + hosts));
    if (copies.back() >= 0) continue;
    _exit(Complain(kBadInput, absl::StrCat("too many hosts for this process's descriptors: ",
                                           std::strerror(errno))));
  }
  for (int host = 0; host < hosts; ++host) {
    dup3(copies[host], kFirstHost + host, O_CLOEXEC);
    close(copies[host]);
  }
}

int RunInLab(const NetworkLab& lab, const std::vector<std::string>& command) {
  const int error = EnterNamespaces(lab.inside(absl::GetFlag(FLAGS_host)));
  if (error != 0) return Complain(kBadInput, absl::StrCat("setns: ", std::strerror(error)));
  for (int signal : {SIGINT, SIGQUIT}) std::signal(signal, SIG_IGN);  // they are for the command
  const pid_t pid = static_cast<pid_t>(
      syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
  if (pid < 0) {
    return Complain(kBadInput, absl::StrCat("cannot make a process namespace (",
                                            std::strerror(errno), "): run it as root"));
  }
  if (pid == 0) {
    NumberHosts(lab);
    BeProcessOne(command);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return ShellCode(status);
}

int Enter(int host, const std::vector<std::string>& command) {
  const int fd = open(HostPath(host).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) {
    return Complain(kBadInput,
                    absl::StrCat("--enter: expected a host of the lab that this runs in, found ",
                                 host, " (", HostPath(host), ": ", std::strerror(errno), ")"));
  }
  Exec(command);
}

int NetLab(int argc, char** argv) {
  FlagOptions flag_options;
  flag_options.usage = kUsage;
  flag_options.aliases = {{"bandwidths", "bandwidth"}};
  const std::vector<std::string> command = OrShell(ParseFlagsOrExit(argc, argv, flag_options));
  GoToTheUser();
  if (absl::GetFlag(FLAGS_enter) >= 0) return Enter(absl::GetFlag(FLAGS_enter), command);
  const absl::StatusOr<NetworkLabOptions> options = LabAsAsked();
  if (!options.ok()) return Complain(kBadInput, options.status().message());
  const absl::StatusOr<std::unique_ptr<NetworkLab>> lab = NetworkLab::Create(*options);
  if (!lab.ok()) return Complain(kBadInput, lab.status().message());
  return RunInLab(**lab, command);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) { return gradsync::NetLab(argc, argv); }
