// What belongs to the process as a whole: its environment and its signals. Only for main files.

#ifndef GRADSYNC_BASE_PROGRAM_MAIN_H_
#define GRADSYNC_BASE_PROGRAM_MAIN_H_

#include <atomic>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

// The value of a variable of the environment, if it is set. Thread-safe as long as nobody sets one.
absl::optional<std::string> EnvironmentVariable(absl::string_view name);

// A path of the command line as the user means it: `bazel run` starts programs elsewhere, but a
// relative path is relative to where the user was. An empty path stays empty. Thread-safe.
std::string UserPath(const std::string& path);

// The same of the path in "cifar10:PATH", "imagefolder:PATH" and "text:PATH"; other values of --data
// are names and stay what they are.
std::string UserData(const std::string& data);

// The number of the last signal that CatchInterrupts() caught; 0 until then. Thread-safe.
const std::atomic<int>& InterruptSignal();

// From now on SIGINT, SIGTERM and SIGHUP only set InterruptSignal(). Call it once, from main.
void CatchInterrupts();

// The code for the process to end with: `code`, or 1 if that is 0 and stdout did not take all that was
// written to it (a full disk, say), which a line on stderr tells then. To be called last.
int ExitCode(absl::string_view program, int code);

// "program: message" as a line on stderr. Thread-safe.
void PrintError(absl::string_view program, absl::string_view message);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_PROGRAM_MAIN_H_
