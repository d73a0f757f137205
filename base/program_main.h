// What belongs to the process as a whole: its environment and its signals. Only for main files.

#ifndef GRADSYNC_BASE_PROGRAM_MAIN_H_
#define GRADSYNC_BASE_PROGRAM_MAIN_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/log_line.h"

namespace gradsync {

// The value of a variable of the environment, if it is set. Thread-safe as long as nobody sets one.
absl::optional<std::string> EnvironmentVariable(absl::string_view name);

// A path of the command line as the user means it: `bazel run` starts programs elsewhere, but a
// relative path is relative to where the user was. An empty path stays empty. Thread-safe.
std::string UserPath(const std::string& path);

// The same of the path in "cifar10:PATH", "imagefolder:PATH" and "text:PATH"; other values of --data
// are names and stay what they are.
std::string UserData(const std::string& data);

// To be called once at each signal that tells this process to end. Returns whether it is another wish
// than the first: not if it comes within a second, since who ends a whole group of processes tells a
// launcher, too, which passes it on. May be called from a signal handler; thread-safe.
bool NoteInterrupt();

// The number of the last signal that one of the next two caught; 0 until then. Thread-safe.
const std::atomic<int>& InterruptSignal();

// How many signals CatchInterrupts() caught, but for those that repeat the first. Thread-safe.
const std::atomic<int>& InterruptCount();

// From now on SIGINT, SIGTERM and SIGHUP only set InterruptSignal(). Call it once, from main.
void CatchInterrupts();

// From now on the first SIGINT or SIGTERM only sets InterruptSignal(); another wish (NoteInterrupt())
// ends the process at once, with the code 128 + its number. A signal that the process was told to
// ignore stays ignored. Call it once, from main, and not with CatchInterrupts().
void CatchFirstInterrupt();

// The code for the process to end with: `code`, or 1 if that is 0 and stdout did not take all that was
// written to it (a full disk, say), which a line on stderr tells, whatever the code. To be called last.
int ExitCode(absl::string_view program, int code);

// How the next two write (base/log_line.h), and who it is that writes. Text at first. To be called
// from main, before other threads write; `step`, which may change and be null, must live as long as
// the process.
struct LogOptions {
  LogFormat format = LogFormat::kText;
  int rank = -1;
  int server = -1;
  const std::atomic<int64_t>* step = nullptr;
};
void SetLog(const LogOptions& options);

// What --log_format says. Errors: INVALID_ARGUMENT naming the flag.
absl::StatusOr<LogFormat> ParseLogFormat(absl::string_view text);

// "program: message" as a line on stderr, or what SetLog() was told. Thread-safe.
void PrintError(absl::string_view program, absl::string_view message);

// The same of what is no failure.
void PrintNotice(absl::string_view program, absl::string_view message);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_PROGRAM_MAIN_H_
