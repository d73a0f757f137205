#include "worker/config_flags.h"

#include <map>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "base/program_main.h"
#include "base/version.h"
#include "base/yaml_flags.h"
#include "torch/version.h"
#include "worker/flag_topics.h"

ABSL_FLAG(std::string, config, "",
          "YAML file that sets flags by their names (docs/running.md); flags of the command line "
          "win over it");
ABSL_FLAG(bool, print_config, false,
          "rank 0 prints the value of every flag and who set it: default, command line, file or "
          "launcher; otherwise one line has those that somebody set");
ABSL_FLAG(std::string, write_config, "",
          "file to which rank 0 writes the job's flags as YAML, which --config takes for the same "
          "job again");

namespace gradsync {

FlagOptions WorkerFlagOptions() {
  FlagOptions options;
  options.alone = {{"resume", "auto"}};
  options.usage =
      "worker [flags]: one worker of a data-parallel training job. tools/launch starts whole jobs.";
  options.topics = WorkerTopics();
  options.version = VersionText("worker", TORCH_VERSION);
  options.file_flag = "config";
  options.read_file = [](const std::string& path) { return ReadYamlFlags(UserPath(path), path); };
  return options;
}

EffectiveFlags EffectiveFlagsFrom(std::vector<FlagRecord> flags, const JoinOptions& join) {
  std::map<std::string, std::string> told;  // by the launcher
  if (!join.launcher.empty()) {
    told = {{"rank", absl::StrCat(join.meet.rank)},
            {"world_size", absl::StrCat(join.meet.world_size)},
            {"master", join.meet.master},
            {"run_id", join.meet.run_id}};
    if (join.device.local_rank.has_value()) {
      told["local_rank"] = absl::StrCat(*join.device.local_rank);
    }
    if (join.num_servers > 0) told["num_servers"] = absl::StrCat(join.num_servers);
  }
  EffectiveFlags effective;
  effective.flags = std::move(flags);
  for (FlagRecord& flag : effective.flags) {
    const auto word = told.find(flag.name);
    if (word == told.end() || flag.origin != "default") continue;
    flag.value = word->second;
    flag.origin = join.launcher;
  }
  effective.topics = WorkerTopics();
  effective.print_all = absl::GetFlag(FLAGS_print_config);
  effective.write_to = UserPath(absl::GetFlag(FLAGS_write_config));
  return effective;
}

}  // namespace gradsync
