#ifndef GRADSYNC_BENCHMARKS_OPTIONS_COMMAND_LINE_H_
#define GRADSYNC_BENCHMARKS_OPTIONS_COMMAND_LINE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/program/flags.h"

namespace gradsync {

// How a program of this package was called, as a user would type it again in a shell: "bazel run
// //benchmarks:TARGET -- --bytes=4KiB 'with space'". Thread-safe.
std::string CommandLine(absl::string_view target, int argc, const char* const* argv);

// How --help of these programs groups their flags: a table of the flags of all of them.
// Thread-safe.
std::vector<FlagTopic> BenchmarkTopics();

// ParseFlagsOrExit() with the spellings and topics that all these programs share. `passed_on`: as
// FlagOptions has it. Only for main files, as the next.
std::vector<std::string> ParseBenchmarkFlags(int argc, const char* const* argv,
                                             const std::string& usage,
                                             std::vector<std::string> passed_on = {});

// The same for a program that takes flags only: anything else is an error, in the name of
// `program`, and exits with 2.
void ParseFlagsOnly(const char* program, int argc, const char* const* argv,
                    const std::string& usage);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_OPTIONS_COMMAND_LINE_H_
