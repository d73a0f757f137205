// Which flags of a program have an effect only beside others: one table for each program, by which
// a flag that somebody set in vain is refused.

#ifndef GRADSYNC_CORE_PROGRAM_FLAG_EFFECTS_H_
#define GRADSYNC_CORE_PROGRAM_FLAG_EFFECTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "core/program/flags.h"

namespace gradsync {

// What the value of a flag is, or is not.
struct FlagCase {
  std::string flag;
  bool is = true;  // false: the value is none of `values`
  // As text that the flag prints. A * at the beginning or the end of one stands for anything.
  std::vector<std::string> values;
};

// A flag that does nothing unless one of some cases holds. Several rows of one flag must all hold.
struct FlagEffect {
  std::string flag;
  std::vector<FlagCase> where;
  // Values that promise nothing, and may be given in any case, such as "false".
  std::vector<std::string> neutral = {};
};

// Whether `value` is what a flag has that is switched off: empty, 0, -1, none or false.
bool IsOff(absl::string_view value);

// What the program needs to say of the flags in the table that somebody set and that do nothing.
//
// Returns INVALID_ARGUMENT for the first of them, as "--nesterov: expected to be left out with
// --optimizer=adam (it is for --optimizer=sgd), found "true"". Two things are less than a mistake,
// since one file serves many jobs: a file may have any flag at its default, and the command line
// may overrule what a flag of the file depends on. The latter is added to `overruled`, a sentence
// each; it may be null in a program without files.
// Not thread-safe: reads the program's flags for their defaults.
absl::Status CheckFlagEffects(const std::vector<FlagEffect>& table,
                              const std::vector<FlagRecord>& flags,
                              std::vector<std::string>* overruled = nullptr);

// The names of all flags in the table that do nothing beside the others, whoever set them. Pure.
std::vector<std::string> FlagsWithoutEffect(const std::vector<FlagEffect>& table,
                                            const std::vector<FlagRecord>& flags);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_FLAG_EFFECTS_H_
