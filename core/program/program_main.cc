#include "core/program/program_main.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/process_main.h"
#include "core/base/write_file.h"

namespace gradsync {
namespace {

// A signal handler has nowhere else to write to.
std::atomic<int> interrupt_signal{0};
std::atomic<int> interrupt_count{0};

std::atomic<int64_t> first_interrupt{0};  // nanoseconds of the monotonic clock
std::atomic<int> first_signal{0};

// Of EndBySignals(), by signal.
std::string* ending_lines[NSIG] = {};

bool AnnouncesTheEnd(int signal) {
  return signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGHUP;
}

void KeepFirst(int signal) {
  int none = 0;
  interrupt_signal.compare_exchange_strong(none, signal);
}

void HandleSignal(int signal) {
  KeepFirst(signal);
  if (NoteInterrupt(signal) || interrupt_count == 0) ++interrupt_count;
}

void HandleFirstSignal(int signal) {
  if (NoteInterrupt(signal)) _exit(128 + signal);
  KeepFirst(signal);
}

// A parent may have blocked them, which a program inherits.
void UnblockEndingSignals() {
  sigset_t ending;
  sigemptyset(&ending);
  for (int signal : EndingSignals()) sigaddset(&ending, signal);
  pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
}

void HandleEndingSignals(void (*handler)(int)) {
  for (int signal : EndingSignals()) {
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
  UnblockEndingSignals();
}

// Of the user, or of this process's for an empty name; empty where the system knows none.
std::string HomeFolder(const std::string& user) {
  if (user.empty()) {
    const std::string home = EnvironmentVariable("HOME").value_or("");
    if (!home.empty()) return home;
  }
  std::vector<char> buffer(1 << 14);
  passwd entry = {};
  passwd* found = nullptr;
  if (user.empty()) {
    getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found);
  } else {
    getpwnam_r(user.c_str(), &entry, buffer.data(), buffer.size(), &found);
  }
  return found == nullptr ? "" : found->pw_dir;
}

}  // namespace

std::string UserPath(const std::string& path) {
  if (path.empty()) return path;
  if (path[0] == '~') {
    const size_t slash = std::min(path.find('/'), path.size());
    const std::string home = HomeFolder(path.substr(1, slash - 1));
    if (!home.empty()) return home + path.substr(slash);
  }
  return ResolvePath(path, EnvironmentVariable("BUILD_WORKING_DIRECTORY").value_or(""));
}

std::string CheckoutFolder() {
  return EnvironmentVariable("BUILD_WORKSPACE_DIRECTORY").value_or("");
}

std::string UserData(const std::string& data) {
  for (const absl::string_view kind : {"cifar10:", "imagefolder:", "text:"}) {
    absl::string_view path = data;
    if (absl::ConsumePrefix(&path, kind)) return absl::StrCat(kind, UserPath(std::string(path)));
  }
  return data;
}

std::vector<int> EndingSignals() {
  std::vector<int> signals;
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) signals.push_back(signal);
  }
  return signals;
}

bool NoteInterrupt(int signal) {
  constexpr int64_t kTogether = 1'000'000'000;
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  int64_t first = 0;
  if (first_interrupt.compare_exchange_strong(first, now)) {
    first_signal = signal;
    return false;
  }
  // The end that was announced has come: a drain that goes on needs the time that is left.
  const int announced = first_signal;
  if (AnnouncesTheEnd(announced) && announced != signal) {
    first_interrupt = now;
    first_signal = signal;
    return false;
  }
  return now - first >= kTogether;
}

const std::atomic<int>& InterruptSignal() { return interrupt_signal; }

const std::atomic<int>& InterruptCount() { return interrupt_count; }

void CatchInterrupts() { HandleEndingSignals(HandleSignal); }

void CatchFirstInterrupt() { HandleEndingSignals(HandleFirstSignal); }

void EndBySignals(absl::string_view program, absl::string_view before) {
  for (int signal : EndingSignals()) {
    ending_lines[signal] = new std::string(
        absl::StrCat(program, ": ended by SIG", sigabbrev_np(signal), " before ", before, "\n"));
  }
  HandleEndingSignals([](int caught) {
    const std::string& line = *ending_lines[caught];
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) {  // nobody is left to tell
    }
    if (getpid() == 1) _exit(128 + caught);
    std::signal(caught, SIG_DFL);
    raise(caught);  // delivered when this handler has returned
  });
}

void OutliveReaders() {
  for (int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
}

int ExitCode(absl::string_view program, int code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return code;
  PrintError(program, "stdout: expected it to take all output, found it closed or full");
  return code == 0 ? 1 : code;
}

}  // namespace gradsync
