#include "worker/config_flags.h"

#include <map>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/plan/job_spec.h"
#include "core/program/flag_effects.h"
#include "core/program/program_main.h"
#include "core/program/version.h"
#include "core/program/yaml_flags.h"
#include "torch/version.h"
#include "worker/data/open_dataset.h"
#include "worker/effective_flags.h"
#include "worker/models/model_options.h"

ABSL_FLAG(
    std::string, config, "",
    "YAML file that sets flags by their names (docs/use/running.md); flags of the command line "
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
  options.aliases = {{"test_only", "evaluate_only"},
                     {"test-only", "evaluate_only"}};  // torchvision's
  options.usage =
      "worker [flags]: one worker of a data-parallel training job. tools/launch starts whole jobs.";
  options.topics = WorkerTopics();
  options.version = VersionText("worker", TORCH_VERSION);
  options.file_flag = "config";
  options.read_file = [](const std::string& path) { return ReadYamlFlags(UserPath(path), path); };
  return options;
}

absl::Status CheckOneTask(const std::vector<FlagRecord>& flags) {
  std::string first;
  for (const FlagRecord& flag : flags) {
    const bool is_task =
        flag.name == "check_data" || flag.name == "describe_model" || flag.name == "evaluate_only";
    if (!is_task || flag.value != "true") continue;
    if (!first.empty()) {
      return FlagError(flag.name, absl::StrCat("false with --", first, ", which ends without it"),
                       flag.value);
    }
    first = flag.name;
  }
  return absl::OkStatus();
}

absl::Status CheckFlagsTogether(const std::vector<FlagRecord>& flags, int rank) {
  for (const FlagRecord& flag : flags) {
    // An unknown model is for CreateModel() to name.
    if (flag.name == "model" && FindModel(flag.value) == nullptr) return absl::OkStatus();
    // Other flags depend on what kind of data they are.
    if (flag.name == "data") GS_RETURN_IF_ERROR(CheckDataForm(UserData(flag.value)));
  }
  std::vector<std::string> overruled;
  GS_RETURN_IF_ERROR(CheckFlagEffects(WorkerFlagEffects(), flags, &overruled));
  for (const std::string& notice : overruled) {
    if (rank == 0) PrintNotice("worker", notice);
  }
  return absl::OkStatus();
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
    // --zero and --offload say it too.
    if (flag.name == "update" && flag.origin == "default") {
      flag.value = UpdateSiteName(join.sync.job.update);
    }
    const auto word = told.find(flag.name);
    if (word == told.end() || flag.origin != "default") continue;
    flag.value = word->second;
    flag.origin = join.launcher;
  }
  effective.without_effect = FlagsWithoutEffect(WorkerFlagEffects(), effective.flags);
  effective.topics = WorkerTopics();
  effective.print_all = absl::GetFlag(FLAGS_print_config);
  effective.write_to = UserPath(absl::GetFlag(FLAGS_write_config));
  return effective;
}

}  // namespace gradsync
