#include "base/program_main.h"

#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/flag_error.h"
#include "base/write_file.h"

namespace gradsync {
namespace {

// A signal handler has nowhere else to write to.
std::atomic<int> interrupt_signal{0};
std::atomic<int> interrupt_count{0};

// Of the process, as its stderr is.
LogOptions log_options;

void Print(Severity severity, absl::string_view program, absl::string_view message) {
  LogSource source;
  source.program = std::string(program);
  source.rank = log_options.rank;
  source.server = log_options.server;
  if (log_options.step != nullptr) source.step = *log_options.step;
  source.time = absl::Now();
  const std::string line = LogLine(log_options.format, source, severity, message) + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

std::atomic<int64_t> first_interrupt{0};  // nanoseconds of the monotonic clock

void HandleSignal(int signal) {
  interrupt_signal = signal;
  if (NoteInterrupt() || interrupt_count == 0) ++interrupt_count;
}

void HandleFirstSignal(int signal) {
  if (NoteInterrupt()) _exit(128 + signal);
  int none = 0;
  interrupt_signal.compare_exchange_strong(none, signal);
}

}  // namespace

absl::optional<std::string> EnvironmentVariable(absl::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr ? absl::nullopt : absl::optional<std::string>(value);
}

std::string UserPath(const std::string& path) {
  if (path.empty()) return path;
  return ResolvePath(path, EnvironmentVariable("BUILD_WORKING_DIRECTORY").value_or(""));
}

std::string UserData(const std::string& data) {
  for (const absl::string_view kind : {"cifar10:", "imagefolder:", "text:"}) {
    absl::string_view path = data;
    if (absl::ConsumePrefix(&path, kind)) return absl::StrCat(kind, UserPath(std::string(path)));
  }
  return data;
}

bool NoteInterrupt() {
  constexpr int64_t kTogether = 1'000'000'000;
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
  int64_t first = 0;
  return !first_interrupt.compare_exchange_strong(first, now) && now - first >= kTogether;
}

const std::atomic<int>& InterruptSignal() { return interrupt_signal; }

const std::atomic<int>& InterruptCount() { return interrupt_count; }

void CatchInterrupts() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, HandleSignal);
}

void CatchFirstInterrupt() {
  for (int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    // As nohup and shells have it for what runs in the background.
    if (action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = HandleFirstSignal;
    action.sa_flags = SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

int ExitCode(absl::string_view program, int code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written) return code;
  PrintError(program, "stdout: expected a file that takes all output, found one that does not");
  return code == 0 ? 1 : code;
}

void SetLog(const LogOptions& options) { log_options = options; }

absl::StatusOr<LogFormat> ParseLogFormat(absl::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return FlagError("log_format", "text or json", text);
}

void PrintError(absl::string_view program, absl::string_view message) {
  Print(Severity::kError, program, message);
}

void PrintNotice(absl::string_view program, absl::string_view message) {
  Print(Severity::kInfo, program, message);
}

}  // namespace gradsync
