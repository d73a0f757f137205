#include "benchmarks/options/command_line.h"

#include "absl/strings/str_cat.h"

namespace gradsync {

std::string CommandLine(absl::string_view target, int argc, const char* const* argv) {
  std::string command = absl::StrCat("bazel run //benchmarks:", target);
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool plain = argument.find_first_of(" \t\n'\"\\$*?;&|<>()`#~") == std::string::npos;
    absl::StrAppend(&command, i == 1 ? " -- " : " ",
                    plain && !argument.empty() ? argument : absl::StrCat("'", argument, "'"));
  }
  return command;
}

}  // namespace gradsync
