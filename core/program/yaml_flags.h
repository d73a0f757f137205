// Settings of flags in YAML files:
//
//   # A comment.
//   model: resnet18
//   optimization:            # a heading: it groups, and its name means nothing
//     lr: 0.02
//     lr_milestones: [30e, 60e]
//
// A key is a flag's name. A value is a text as the command line has it, whatever types YAML sees in
// it; but a plain `no`, `true` or `None`, without quotes, is no text. Merge keys (<<) are refused.
// core/program/flags.h checks names and types.

#ifndef GRADSYNC_CORE_PROGRAM_YAML_FLAGS_H_
#define GRADSYNC_CORE_PROGRAM_YAML_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/program/flags.h"

namespace gradsync {

// What the file at `path` sets, in its order, headings among it; messages call the file `name`.
// An empty file sets nothing. Thread-safe.
// Errors: NOT_FOUND for a file that cannot be read; INVALID_ARGUMENT with "name:line: ", for what
// is not YAML, a document that is no map, a second document, a key that is not one word, a value
// that is missing or no text or list of texts, or an element with a comma in it.
absl::StatusOr<std::vector<FlagSetting>> ReadYamlFlags(const std::string& path,
                                                       absl::string_view name);

// The same of a text.
absl::StatusOr<std::vector<FlagSetting>> ParseYamlFlags(const std::string& text,
                                                        absl::string_view name);

// A line "name: value" that ParseYamlFlags() reads to the same setting. Thread-safe.
std::string YamlLine(const FlagRecord& flag);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_YAML_FLAGS_H_
