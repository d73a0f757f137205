#include "base/program_main.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/write_file.h"

namespace gradsync {
namespace {

// A signal handler has nowhere else to write to.
std::atomic<int> interrupt_signal{0};

void HandleSignal(int signal) { interrupt_signal = signal; }

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

const std::atomic<int>& InterruptSignal() { return interrupt_signal; }

void CatchInterrupts() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, HandleSignal);
}

int ExitCode(absl::string_view program, int code) {
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || code != 0) return code;
  PrintError(program, "stdout: expected a file that takes all output, found one that does not");
  return 1;
}

void PrintError(absl::string_view program, absl::string_view message) {
  const std::string line = absl::StrCat(program, ": ", message, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace gradsync
