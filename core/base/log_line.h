// What a program says on stderr, as a line for people or for machines.

#ifndef GRADSYNC_CORE_BASE_LOG_LINE_H_
#define GRADSYNC_CORE_BASE_LOG_LINE_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace gradsync {

enum class LogFormat { kText, kJson };

// Who says it, and when.
struct LogSource {
  std::string program;
  int rank = -1;      // of a worker; -1: not known
  int server = -1;    // of a server, its number; -1: not known
  int64_t step = -1;  // the newest that was finished; -1: not known
  absl::Time time;
};

enum class Severity { kInfo, kWarning, kError };

// `text`, which a peer, a file or a user may have had a part in, as it can be shown on one line of a
// terminal or a log: control characters, also those beyond ASCII, and bytes that are not UTF-8 become
// \n, \r, \t or \x1b and the like. Backslashes stay what they are. Thread-safe.
std::string PrintableLine(absl::string_view text);

// Without an end of line. As text "worker: MESSAGE", whatever the severity, by PrintableLine(); as
// JSON an object with "time" (RFC 3339, UTC), "severity" (INFO, WARNING, ERROR), "program",
// "message", and "rank", "server" and "step" where they are known. In JSON control characters are
// escaped too, and bytes of the message that are not UTF-8 become U+FFFD.
std::string LogLine(LogFormat format, const LogSource& source, Severity severity,
                    absl::string_view message);

// A line that LogLine() wrote, in either format, as the text that it would be: "worker: MESSAGE". What
// is no such object stays what it is.
std::string AsTextLine(absl::string_view line);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_LOG_LINE_H_
