#include "core/program/flag_effects.h"

#include <algorithm>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

constexpr absl::string_view kCommandLine = "command line";

using Records = std::map<std::string, const FlagRecord*>;

Records ByName(const std::vector<FlagRecord>& flags) {
  Records records;
  for (const FlagRecord& flag : flags) records[flag.name] = &flag;
  return records;
}

bool Matches(absl::string_view value, absl::string_view pattern) {
  if (absl::ConsumeSuffix(&pattern, "*")) return absl::StartsWith(value, pattern);
  if (absl::ConsumePrefix(&pattern, "*")) return absl::EndsWith(value, pattern);
  return value == pattern;
}

bool MatchesAny(absl::string_view value, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return Matches(value, pattern); });
}

// A flag that the program lacks holds nowhere.
bool Holds(const FlagCase& one, const Records& flags) {
  const auto record = flags.find(one.flag);
  return record != flags.end() && MatchesAny(record->second->value, one.values) == one.is;
}

bool HasEffect(const FlagEffect& row, const Records& flags) {
  return std::any_of(row.where.begin(), row.where.end(),
                     [&](const FlagCase& one) { return Holds(one, flags); });
}

// "a, b or c".
std::string List(const std::vector<std::string>& words, absl::string_view last) {
  if (words.size() < 2) return absl::StrJoin(words, "");
  return absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " ", last, " ",
                      words.back());
}

// "with --optimizer=adam (it is for --optimizer=sgd)", "without --trace".
std::string Why(const FlagEffect& row, const Records& flags) {
  std::vector<std::string> with, without, meant;
  for (const FlagCase& one : row.where) {
    const auto record = flags.find(one.flag);
    const std::string value = record == flags.end() ? "" : record->second->value;
    if (!one.is && IsOff(value)) {
      without.push_back(absl::StrCat("--", one.flag));
      continue;
    }
    with.push_back(absl::StrCat("--", one.flag, "=", value));
    std::vector<std::string> values;  // An empty word would leave a gap in the line.
    for (const std::string& each : one.values) {
      if (!each.empty()) values.push_back(each);
    }
    if (one.is) meant.push_back(absl::StrCat("--", one.flag, "=", List(values, "or")));
  }
  std::vector<std::string> parts;
  if (!with.empty()) parts.push_back(absl::StrCat("with ", List(with, "and")));
  if (!without.empty()) parts.push_back(absl::StrCat("without ", List(without, "or")));
  std::string why = absl::StrJoin(parts, " and ");
  if (!meant.empty()) absl::StrAppend(&why, " (it is for ", List(meant, "or"), ")");
  return why;
}

bool IsDefault(const FlagRecord& flag) {
  const absl::CommandLineFlag* const found = absl::FindCommandLineFlag(flag.name);
  return found != nullptr && found->DefaultValue() == flag.value;
}

bool SetByCommandLine(const FlagCase& one, const Records& flags) {
  const auto record = flags.find(one.flag);
  return record != flags.end() && record->second->origin == kCommandLine;
}

}  // namespace

bool IsOff(absl::string_view value) {
  return value.empty() || value == "0" || value == "-1" || value == "none" || value == "false";
}

absl::Status CheckFlagEffects(const std::vector<FlagEffect>& table,
                              const std::vector<FlagRecord>& flags,
                              std::vector<std::string>* overruled) {
  const Records records = ByName(flags);
  for (const FlagEffect& row : table) {
    const auto found = records.find(row.flag);
    if (found == records.end()) continue;
    const FlagRecord& flag = *found->second;
    if (flag.origin == "default" || MatchesAny(flag.value, row.neutral)) continue;
    if (HasEffect(row, records)) continue;
    const std::string why = Why(row, records);
    if (flag.origin != kCommandLine) {
      if (IsDefault(flag)) continue;
      if (std::any_of(row.where.begin(), row.where.end(),
                      [&](const FlagCase& one) { return SetByCommandLine(one, records); })) {
        if (overruled == nullptr) continue;
        overruled->push_back(
            absl::StrCat(flag.name, ": ", flag.value, " of ", flag.origin, " has no effect ", why));
        continue;
      }
    }
    const absl::Status refused =
        FlagError(flag.name, absl::StrCat("to be left out ", why), flag.value);
    if (flag.origin == kCommandLine) return refused;
    return absl::InvalidArgumentError(absl::StrCat(flag.origin, ": ", refused.message()));
  }
  return absl::OkStatus();
}

std::vector<std::string> FlagsWithoutEffect(const std::vector<FlagEffect>& table,
                                            const std::vector<FlagRecord>& flags) {
  const Records records = ByName(flags);
  std::vector<std::string> names;
  for (const FlagEffect& row : table) {
    if (!HasEffect(row, records)) names.push_back(row.flag);
  }
  return names;
}

}  // namespace gradsync
