#include "worker/effective_flags.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/base/yaml_flags.h"

namespace gradsync {
namespace {

// The same job runs elsewhere without these, or with others.
constexpr absl::string_view kNotOfTheJob[] = {
    "rank",      "world_size",   "local_rank",   "master",       "port_file",
    "interface", "run_id",       "servers",      "num_servers",  "server_tasks",
    "config",    "print_config", "write_config", "metrics_json",
};

bool IsOfTheJob(const FlagRecord& flag) {
  return std::find(std::begin(kNotOfTheJob), std::end(kNotOfTheJob), flag.name) ==
         std::end(kNotOfTheJob);
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// `line` of each flag that it has one for, under its topic's title.
template <typename Line>
std::string ByTopic(const EffectiveFlags& effective, const Line& line) {
  std::map<std::string, const FlagRecord*> rest;
  for (const FlagRecord& flag : effective.flags) rest[flag.name] = &flag;
  std::string text;
  for (const FlagTopic& topic : effective.topics) {
    std::string of_topic;
    for (const std::string& name : topic.flags) {
      const auto flag = rest.find(name);
      if (flag == rest.end()) continue;
      of_topic += line(*flag->second);
      rest.erase(flag);
    }
    if (!of_topic.empty()) absl::StrAppend(&text, "\n# ", topic.title, "\n", of_topic);
  }
  std::string others;
  for (const auto& [name, flag] : rest) others += line(*flag);
  if (!others.empty()) absl::StrAppend(&text, "\n# Other\n", others);
  return text;
}

}  // namespace

std::string NotableFlags(const std::vector<FlagRecord>& flags) {
  std::vector<std::string> origins;  // in the order in which they appear
  std::map<std::string, std::vector<std::string>> by_origin;
  for (const FlagRecord& flag : flags) {
    if (flag.origin == "default") continue;
    std::vector<std::string>& words = by_origin[flag.origin];
    if (words.empty()) origins.push_back(flag.origin);
    words.push_back(absl::StrCat(flag.name, "=", absl::StrReplaceAll(flag.value, {{"\n", "\\n"}})));
  }
  if (origins.empty()) return "flags at their defaults";
  const auto group = [&](std::string* out, const std::string& origin) {
    absl::StrAppend(out, "by ", origin, ": ", absl::StrJoin(by_origin[origin], ", "));
  };
  return absl::StrCat("flags ", absl::StrJoin(origins, "; ", group));
}

std::string AllFlags(const EffectiveFlags& flags) {
  return ByTopic(flags, [&](const FlagRecord& flag) {
    return absl::StrCat(YamlLine(flag), "  # ", flag.origin,
                        Contains(flags.without_effect, flag.name) ? ", without effect" : "", "\n");
  });
}

std::string JobFile(const EffectiveFlags& flags) {
  return absl::StrCat(
      "# All flags of a run, for //worker's --config. How many workers and servers there are is\n"
      "# for whoever starts them.\n",
      ByTopic(flags, [&](const FlagRecord& flag) {
        const bool written = IsOfTheJob(flag) && !Contains(flags.without_effect, flag.name);
        return written ? absl::StrCat(YamlLine(flag), "\n") : std::string();
      }));
}

absl::Status ShowFlags(const EffectiveFlags& flags, bool brief) {
  if (flags.print_all) {
    std::printf("%s\n", AllFlags(flags).c_str());
  } else if (brief) {
    std::printf("%s\n", NotableFlags(flags.flags).c_str());
  }
  std::fflush(stdout);
  if (flags.write_to.empty()) return absl::OkStatus();
  return WriteFileAtomically(flags.write_to, JobFile(flags));
}

}  // namespace gradsync
