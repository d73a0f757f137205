// Command lines for binaries that declare their flags with ABSL_FLAG.
//
// Abseil's own parser exits with 1 on a bad flag and prints several lines. Here a mistake is one
// line that names the flag, what was expected and what came, and the exit code is 2:
//
//   int main(int argc, char** argv) {
//     std::vector<std::string> files =
//         gradsync::ParseFlagsOrExit(argc, argv, {"worker [flags]: trains one rank of a job."});
//
// Accepted: --x=v, --x v, and for a bool --x, --nox, --x=false. One dash does as well as two,
// except before a digit (-5 is positional). The last of several settings wins. `--` ends the flags;
// it and "-" alone aside, what is not a flag or its value is positional. `--x v` takes v as it is
// unless v starts with two dashes, which must be written --x=v; a flag of FlagOptions::alone may
// stand there without a value.
#ifndef GRADSYNC_CORE_PROGRAM_FLAGS_H_
#define GRADSYNC_CORE_PROGRAM_FLAGS_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace gradsync {

// A heading of --help and the flags that stand under it.
struct FlagTopic {
  std::string title;               // without a colon
  std::vector<std::string> flags;  // names, no aliases, in the order in which --help shows them
};

// A flag as a file sets it.
struct FlagSetting {
  enum class Kind {
    kText,     // `value` is what would follow "=" on a command line
    kList,     // the same, elements parted by commas
    kSection,  // a heading, which means nothing; `value` is empty
    kWord,     // a text that others take for a boolean or for nothing: yes, On, false, None
  };
  std::string name;
  std::string value;
  Kind kind = Kind::kText;
  int line = 0;  // of the file, from 1
};

struct FlagOptions {
  // What --help prints above the flags: how to call the program and what it does.
  std::string usage = {};

  // Other spellings: alias -> name of a flag of this binary, such as {"worker", "workers"} or
  // {"b", "min_bytes"}. A flag with the alias as its own name comes first. Programs may share a
  // table: an alias of a flag that this binary lacks is unknown here, as that flag is.
  std::map<std::string, std::string> aliases = {};

  // Flags that may end the line, or stand before another flag, without a value: name -> the value
  // that they then have, such as {"resume", "auto"}.
  std::map<std::string, std::string> alone = {};

  // Flags of the workers that this program starts, and that it passes on to them when they stand
  // behind `--`: a mistaken one before it is told so. Empty: it passes none on.
  std::vector<std::string> passed_on = {};

  // Flags of the workers that this program gives them itself: who writes one is told to leave it out.
  std::vector<std::string> given = {};

  // How --help groups the flags; empty: one list, by name. A flag stands under the first topic that
  // names it; flags that no topic names come last, under "Other". Programs may share a table: names
  // of flags that this binary lacks are passed over, and so are topics without any flag of it.
  std::vector<FlagTopic> topics = {};

  // What --version prints; empty: there is no --version, unless a flag has that name.
  std::string version = {};

  // Which flag of this binary, of type text, names a file that sets others; empty: none. What the
  // command line sets wins over the file.
  std::string file_flag = {};

  // Reads such a file; needed with file_flag.
  std::function<absl::StatusOr<std::vector<FlagSetting>>(const std::string& path)> read_file = {};
};

// What a flag is set to, and by whom.
struct FlagRecord {
  std::string name;
  std::string value;  // as FlagValues() has it
  std::string
      origin;  // "default", "command line", the file as it was named, or the program's words
  bool is_list = false;
};

struct ParsedFlags {
  std::vector<std::string> positional;
  std::vector<FlagRecord> flags;  // all that the binary's own sources define, by name

  // Whether anybody but the default has set this flag.
  bool Sets(absl::string_view flag) const;
};

// Sets the flags that argv (argv[0] is skipped) names and returns the positional arguments in
// order. Not thread-safe: flags are process-wide; call it once, from main, before threads start.
// Flags before the first mistake stay set. Errors: INVALID_ARGUMENT for an unknown flag (with what it
// may be here: core/program/other_names.h, or a similar name), a value that the flag's type refuses,
// or a missing value, with file and line where a file has it; also a flag that the file sets twice;
// those of options.read_file; CANCELLED for --help, -h or --version, with the text to be printed as
// message.
absl::StatusOr<std::vector<std::string>> ParseFlags(int argc, const char* const* argv,
                                                    const FlagOptions& options = {});

// The same, and says who has set what.
absl::StatusOr<ParsedFlags> ParseFlagsWithOrigins(int argc, const char* const* argv,
                                                  const FlagOptions& options = {});
ParsedFlags ParseFlagsWithOriginsOrExit(int argc, const char* const* argv,
                                        const FlagOptions& options = {});

// As ParseFlags, but prints the error on stderr as one line and exits with 2, or prints the help on
// stdout and exits with 0.
std::vector<std::string> ParseFlagsOrExit(int argc, const char* const* argv,
                                          const FlagOptions& options = {});

// What a bool of a job file may be, in any case: true, yes, y, on, 1 and their opposites; a command
// line takes all of these but on and off. Unset for other words. Pure.
absl::optional<bool> ParseTruth(absl::string_view text);

// The value that each flag has now which the binary's own sources define, as text that the flag
// would parse to it, by name. Thread-safe.
std::map<std::string, std::string> FlagValues();

// The usage text and each flag that the binary's own sources define (not those of system
// libraries), by topic and name, with its other spellings, type, help and default.
std::string FlagHelp(const FlagOptions& options = {});

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_FLAGS_H_
