// What belongs to the process as a whole: its environment and what it says on stderr. Only for main
// files.

#ifndef GRADSYNC_CORE_BASE_PROCESS_MAIN_H_
#define GRADSYNC_CORE_BASE_PROCESS_MAIN_H_

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "core/base/log_line.h"

namespace gradsync {

// The value of a variable of the environment, if it is set. Thread-safe as long as nobody sets one.
absl::optional<std::string> EnvironmentVariable(absl::string_view name);

// How the next two write (core/base/log_line.h), and who it is that writes. Text at first. To be
// called from main, before other threads write; `step`, which may change and be null, must live as
// long as the process.
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

#endif  // GRADSYNC_CORE_BASE_PROCESS_MAIN_H_
