#include "core/base/process_main.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

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

}  // namespace

absl::optional<std::string> EnvironmentVariable(absl::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr ? absl::nullopt : absl::optional<std::string>(value);
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
