#include "core/program/flags.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/log_line.h"
#include "core/base/status_macros.h"
#include "core/program/byte_sizes.h"
#include "core/program/other_names.h"

namespace gradsync {
namespace {

using Flag = absl::CommandLineFlag;

// Bazel compiles the binary's own sources by relative paths outside external/; Abseil's are
// compiled somewhere else but also carry a relative path.
bool IsOwn(const Flag& flag) {
  const std::string file = flag.Filename();
  return !flag.IsRetired() && !absl::StartsWith(file, "/") &&
         !absl::StartsWith(file, "external/") && !absl::StrContains(file, "absl/flags/");
}

std::map<std::string, Flag*> OwnFlags() {
  std::map<std::string, Flag*> own;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (IsOwn(*flag)) own[std::string(name)] = flag;
  }
  return own;
}

// Empty for a type of the program's own.
absl::string_view TypeName(const Flag& flag) {
  if (flag.IsOfType<bool>()) return "true or false";
  if (flag.IsOfType<int32_t>() || flag.IsOfType<int64_t>()) return "an integer";
  if (flag.IsOfType<uint32_t>() || flag.IsOfType<uint64_t>()) return "an integer of at least 0";
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "a number";
  if (flag.IsOfType<absl::optional<double>>()) return "a number, or empty";
  if (flag.IsOfType<absl::Duration>()) return "a duration such as 30s or 1.5m";
  if (flag.IsOfType<ByteSize>()) return "a size such as 4096, 64KiB or 25MiB";
  if (flag.IsOfType<std::string>()) return "a text";
  if (flag.IsOfType<std::vector<std::string>>()) return "a list such as a,b,c";
  return "";
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// One argument that looks like a flag, taken apart: [-]-name[=value].
struct Token {
  absl::string_view name;
  absl::string_view value;
  bool has_value = false;
};

Token Split(absl::string_view argument) {
  Token token;
  argument.remove_prefix(absl::StartsWith(argument, "--") ? 2 : 1);
  const size_t equals = argument.find('=');
  token.name = argument.substr(0, equals);
  token.has_value = equals != absl::string_view::npos;
  if (token.has_value) token.value = argument.substr(equals + 1);
  return token;
}

bool LooksLikeFlag(absl::string_view argument) {
  if (argument.size() < 2 || argument[0] != '-') return false;
  return argument[1] != '.' && !std::isdigit(static_cast<unsigned char>(argument[1]));
}

class Parser {
 public:
  explicit Parser(const FlagOptions& options) : options_(options), own_(OwnFlags()) {}

  absl::StatusOr<ParsedFlags> Parse(int argc, const char* const* argv) {
    ParsedFlags parsed;
    GS_ASSIGN_OR_RETURN(parsed.positional, ParseArguments(argc, argv));
    Flag* const file = options_.file_flag.empty() ? nullptr : Find(options_.file_flag);
    if (file != nullptr && !file->CurrentValue().empty()) {
      GS_RETURN_IF_ERROR(ParseFile(file->CurrentValue()));
      // Once more, so that what the command line says stands over what the file has.
      GS_RETURN_IF_ERROR(ParseArguments(argc, argv).status());
    }
    for (const auto& [name, flag] : own_) {
      const auto origin = origins_.find(flag);
      parsed.flags.push_back({name, flag->CurrentValue(),
                              origin == origins_.end() ? "default" : origin->second,
                              flag->IsOfType<std::vector<std::string>>()});
    }
    return parsed;
  }

 private:
  absl::StatusOr<std::vector<std::string>> ParseArguments(int argc, const char* const* argv) {
    std::vector<std::string> positional;
    for (int i = 1; i < argc; ++i) {
      const absl::string_view argument = argv[i];
      if (argument == "--") {
        positional.insert(positional.end(), argv + i + 1, argv + argc);
        break;
      }
      if (!LooksLikeFlag(argument)) {
        positional.emplace_back(argument);
        continue;
      }
      absl::Status status = ParseOne(Split(argument), i + 1 < argc ? argv[i + 1] : nullptr, &i);
      if (!status.ok()) return status;
    }
    return positional;
  }

  absl::Status ParseFile(const std::string& path) {
    GS_ASSIGN_OR_RETURN(const std::vector<FlagSetting> settings, options_.read_file(path));
    std::map<Flag*, int> lines;  // that set a flag
    for (const FlagSetting& setting : settings) {
      const std::string where = absl::StrCat(path, ":", setting.line, ": ", setting.name);
      Flag* const flag = Find(setting.name);
      if (setting.kind == FlagSetting::Kind::kSection) {
        if (flag == nullptr) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": expected ", Expected(*flag), ", found a section"));
      }
      if (flag == nullptr) return Unknown(where, setting.name, "");
      if (flag->Name() == options_.file_flag) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": expected a flag for the job, found the one that names this file"));
      }
      const auto [first, is_first] = lines.emplace(flag, setting.line);
      if (!is_first) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": expected once in the file, found again after line ", first->second));
      }
      const bool is_word = setting.kind == FlagSetting::Kind::kWord;
      if (is_word &&
          (flag->IsOfType<std::string>() || flag->IsOfType<std::vector<std::string>>())) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": expected a text, found ", setting.value,
                         ", a boolean or an empty value to YAML; write \"", setting.value,
                         "\" if the text is meant, or leave the line out"));
      }
      const bool is_list = setting.kind == FlagSetting::Kind::kList;
      if (is_list && !flag->IsOfType<std::vector<std::string>>()) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": expected ", Expected(*flag), ", found a list"));
      }
      const absl::optional<bool> truth =
          flag->IsOfType<bool>() ? ParseTruth(setting.value) : absl::nullopt;
      GS_RETURN_IF_ERROR(Set(
          flag, where,
          truth.has_value() ? absl::string_view(*truth ? "true" : "false") : setting.value, path));
    }
    return absl::OkStatus();
  }

  // `next` is the argument after the flag, or null; `i` advances if it was taken as the value.
  absl::Status ParseOne(const Token& token, const char* next, int* i) {
    Flag* flag = Find(token.name);
    if (flag == nullptr && (token.name == "help" || token.name == "h")) {
      return absl::CancelledError(FlagHelp(options_));
    }
    if (flag == nullptr && token.name == "version" && !options_.version.empty()) {
      return absl::CancelledError(options_.version);
    }
    if (flag == nullptr) return ParseNegated(token);
    if (token.has_value) return SetByArgument(flag, token.name, token.value);
    if (flag->IsOfType<bool>()) return SetByArgument(flag, token.name, "true");
    if (next == nullptr || absl::StartsWith(next, "--")) {
      const auto alone = options_.alone.find(std::string(flag->Name()));
      if (alone != options_.alone.end()) return SetByArgument(flag, token.name, alone->second);
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", token.name, ": expected ", Expected(*flag), ", found ",
                       next == nullptr ? "nothing after it" : absl::StrCat("the flag ", next)));
    }
    ++*i;
    return SetByArgument(flag, token.name, next);
  }

  absl::Status ParseNegated(const Token& token) {
    Flag* flag = absl::StartsWith(token.name, "no") ? Find(token.name.substr(2)) : nullptr;
    if (flag == nullptr) return Unknown(absl::StrCat("flag --", token.name), token.name, "--");
    if (!flag->IsOfType<bool>()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", token.name, ": expected --",
                                                     token.name.substr(2), "=", "VALUE, as it is ",
                                                     Expected(*flag), ", found its negation"));
    }
    if (token.has_value) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag --", token.name, ": expected no value, found \"", token.value, "\""));
    }
    return SetByArgument(flag, token.name, "false");
  }

  Flag* Find(absl::string_view name) const {
    const auto own = own_.find(std::string(name));
    if (own != own_.end()) return own->second;
    const auto alias = options_.aliases.find(std::string(name));
    if (alias == options_.aliases.end()) return nullptr;
    const auto target = own_.find(alias->second);
    return target == own_.end() ? nullptr : target->second;
  }

  static std::string Expected(const Flag& flag) {
    const absl::string_view type = TypeName(flag);
    return type.empty() ? std::string("a value") : std::string(type);
  }

  absl::Status SetByArgument(Flag* flag, absl::string_view name, absl::string_view value) {
    return Set(flag, absl::StrCat("flag --", name), value, "command line");
  }

  // `where` begins the message, when the flag's type refuses the value.
  absl::Status Set(Flag* flag, absl::string_view where, absl::string_view value,
                   absl::string_view origin) {
    std::string error;
    if (flag->ParseFrom(value, &error)) {
      origins_[flag] = std::string(origin);
      return absl::OkStatus();
    }
    // Abseil's message repeats flag and value; what the type has to say comes after a semicolon.
    const size_t own_words = error.find(absl::StrCat("'", flag->Name(), "'; "));
    std::string expected = Expected(*flag);
    if (own_words != std::string::npos) {
      const std::string words = error.substr(own_words + flag->Name().size() + 4);
      expected = TypeName(*flag).empty() ? words : absl::StrCat(expected, " (", words, ")");
    }
    if (absl::StartsWith(expected, "expected ")) expected.erase(0, 9);
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected ", expected, ", found \"", value, "\""));
  }

  // `dashes` stand before a flag's name where the user wrote this one.
  absl::Status Unknown(absl::string_view where, absl::string_view name,
                       absl::string_view dashes) const {
    const std::string hint = Hint(name, dashes);
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": expected a flag of this program, found ",
                     hint.empty() ? std::string("an unknown name; --help lists them") : hint));
  }

  // What was found in place of a flag, and what to write; empty: nothing is known of it.
  std::string Hint(absl::string_view name, absl::string_view dashes) const {
    std::string plain = absl::StrReplaceAll(absl::AsciiStrToLower(name), {{"-", "_"}});
    const std::vector<std::string> others = FlagsHereFor(plain);
    const auto means = [&](const std::vector<std::string>& flags) {
      return absl::StrCat("an unknown name; did you mean ",
                          absl::StrJoin(flags, " or ",
                                        [dashes](std::string* out, const std::string& flag) {
                                          absl::StrAppend(out, dashes, flag);
                                        }),
                          "?");
    };
    if (Find(plain) != nullptr) return means({plain});
    if (IsPassedOn(plain)) {
      return absl::StrCat("one of the workers: put it behind --, as in -- ", dashes, plain, "=...");
    }
    std::vector<std::string> here;
    for (const std::string& flag : others) {
      if (Find(flag) != nullptr) here.push_back(flag);
    }
    if (!here.empty()) return means(here);
    for (const std::string& flag : {plain, others.empty() ? plain : others.front()}) {
      if (std::find(options_.given.begin(), options_.given.end(), flag) == options_.given.end())
        continue;
      return absl::StrCat("the workers' ", dashes, flag,
                          ", which this program gives each of them: leave it out");
    }
    const auto passed_on = std::find_if(
        others.begin(), others.end(), [this](const std::string& flag) { return IsPassedOn(flag); });
    const absl::string_view why_not = NcclTestsHas(plain);
    if (!why_not.empty() && Find("min_bytes") != nullptr && Find("factor") != nullptr) {
      return absl::StrCat("one of nccl-tests without a counterpart: ", why_not);
    }
    const std::string similar = passed_on != others.end() ? *passed_on : MostSimilar(name);
    if (similar.empty() || !IsPassedOn(similar)) return similar.empty() ? "" : means({similar});
    return absl::StrCat("an unknown name; did you mean ", dashes, similar,
                        " of the workers? It stands behind --, as in -- ", dashes, similar, "=...");
  }

  bool IsPassedOn(const std::string& name) const {
    const std::vector<std::string>& all = options_.passed_on;
    return Find(name) == nullptr && std::find(all.begin(), all.end(), name) != all.end();
  }

  // Of this program's flags, their other spellings and what it passes on; empty: none is near.
  std::string MostSimilar(absl::string_view name) const {
    std::string best;
    size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
    const auto consider = [&](absl::string_view candidate) {
      const size_t distance = EditDistance(name, candidate);
      if (distance < best_distance && distance < name.size()) {
        best_distance = distance;
        best = std::string(candidate);
      }
    };
    for (const auto& [own, flag] : own_) {
      consider(own);
      if (flag->IsOfType<bool>()) consider(absl::StrCat("no", own));
    }
    for (const auto& [alias, target] : options_.aliases) {
      if (own_.count(target) > 0) consider(alias);
    }
    for (const std::string& flag : options_.passed_on) consider(flag);
    return best;
  }

  const FlagOptions& options_;
  const std::map<std::string, Flag*> own_;
  std::map<const Flag*, std::string> origins_;
};

// The lines of --help about one flag.
std::string Describe(const Flag& flag, const FlagOptions& options) {
  std::string spellings = absl::StrCat("--", flag.Name());
  for (const auto& [alias, target] : options.aliases) {
    if (target != flag.Name()) continue;
    absl::StrAppend(&spellings, ", ", alias.size() == 1 ? "-" : "--", alias);
  }
  const absl::string_view type = TypeName(flag);
  const std::string value = flag.DefaultValue();
  return absl::StrCat("  ", spellings, type.empty() ? "" : absl::StrCat("  (", type, ")"),
                      "\n      ", absl::StrReplaceAll(flag.Help(), {{"\n", "\n      "}}),
                      "\n      default: ", value.empty() ? "empty" : value, "\n");
}

}  // namespace

absl::optional<bool> ParseTruth(absl::string_view text) {
  const std::string word = absl::AsciiStrToLower(text);
  for (const char* yes : {"true", "t", "yes", "y", "on", "1"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"false", "f", "no", "n", "off", "0"}) {
    if (word == no) return false;
  }
  return absl::nullopt;
}

bool ParsedFlags::Sets(absl::string_view flag) const {
  return std::any_of(flags.begin(), flags.end(), [flag](const FlagRecord& record) {
    return record.name == flag && record.origin != "default";
  });
}

absl::StatusOr<ParsedFlags> ParseFlagsWithOrigins(int argc, const char* const* argv,
                                                  const FlagOptions& options) {
  return Parser(options).Parse(argc, argv);
}

absl::StatusOr<std::vector<std::string>> ParseFlags(int argc, const char* const* argv,
                                                    const FlagOptions& options) {
  GS_ASSIGN_OR_RETURN(ParsedFlags parsed, ParseFlagsWithOrigins(argc, argv, options));
  return std::move(parsed.positional);
}

ParsedFlags ParseFlagsWithOriginsOrExit(int argc, const char* const* argv,
                                        const FlagOptions& options) {
  absl::StatusOr<ParsedFlags> parsed = ParseFlagsWithOrigins(argc, argv, options);
  if (parsed.ok()) return *std::move(parsed);
  const std::string message(parsed.status().message());
  if (absl::IsCancelled(parsed.status())) {
    std::fputs(message.c_str(), stdout);
    std::exit(0);
  }
  std::fprintf(stderr, "%s\n", PrintableLine(message).c_str());
  std::exit(2);
}

std::vector<std::string> ParseFlagsOrExit(int argc, const char* const* argv,
                                          const FlagOptions& options) {
  return ParseFlagsWithOriginsOrExit(argc, argv, options).positional;
}

std::map<std::string, std::string> FlagValues() {
  std::map<std::string, std::string> values;
  for (const auto& [name, flag] : OwnFlags()) values[name] = flag->CurrentValue();
  return values;
}

std::string FlagHelp(const FlagOptions& options) {
  std::string text = options.usage;
  if (!text.empty() && text.back() != '\n') text += '\n';
  std::map<std::string, Flag*> rest = OwnFlags();
  for (const FlagTopic& topic : options.topics) {
    std::string of_topic;
    for (const std::string& name : topic.flags) {
      const auto flag = rest.find(name);
      if (flag == rest.end()) continue;
      of_topic += Describe(*flag->second, options);
      rest.erase(flag);
    }
    if (!of_topic.empty()) absl::StrAppend(&text, "\n", topic.title, ":\n", of_topic);
  }
  if (rest.empty()) return text;
  absl::StrAppend(&text, options.topics.empty() ? "\nFlags:\n" : "\nOther:\n");
  for (const auto& [name, flag] : rest) text += Describe(*flag, options);
  return text;
}

}  // namespace gradsync
