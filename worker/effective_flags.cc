#include "worker/effective_flags.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/program/yaml_flags.h"
#include "worker/models/model_options.h"

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

FlagCase Is(const std::string& flag, const std::vector<std::string>& values) {
  return {flag, true, values};
}

FlagCase IsNot(const std::string& flag, const std::vector<std::string>& values) {
  return {flag, false, values};
}

FlagCase ModelWith(const std::function<bool(const ModelEntry& model)>& property) {
  std::vector<std::string> names;
  for (const ModelEntry& model : Models()) {
    if (property(model)) names.push_back(model.name);
  }
  return Is("model", names);
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

std::vector<FlagEffect> WorkerFlagEffects() {
  const FlagCase gpt =
      ModelWith([](const ModelEntry& model) { return model.family == ModelFamily::kGpt; });
  const FlagCase resnet =
      ModelWith([](const ModelEntry& model) { return model.family == ModelFamily::kResNet; });
  const FlagCase with_dropout = ModelWith([](const ModelEntry& model) {
    return model.family == ModelFamily::kVgg || model.family == ModelFamily::kViT ||
           model.family == ModelFamily::kGpt;
  });
  const FlagCase of_images =
      ModelWith([](const ModelEntry& model) { return model.input == InputKind::kImages; });
  const FlagCase image_folder = Is("data", {"imagefolder:*"});
  const FlagCase sgd = Is("optimizer", {"sgd"});
  const FlagCase warm_up = IsNot("lr_warmup", {"", "0", "0e"});
  const FlagCase warm_up_steps = IsNot("lr_warmup_steps", {"0"});
  const FlagCase on_gpu = IsNot("device", {"cpu"});
  const FlagCase has_page = IsNot("metrics_port", {"-1"});
  return {
      // Exchange.
      {"update", {Is("zero", {"0"})}, {"owner"}},
      {"update", {Is("offload", {"none"})}, {"owner"}},
      {"connections", {Is("link", {"auto", "grpc", "tcp"})}, {"0"}},
      {"connections", {Is("topology", {"ps", "ring"})}, {"0"}},
      {"server_weights", {Is("topology", {"ps"})}, {"auto"}},
      // Model and data.
      {"stem", {resnet}, {"imagenet"}},
      {"gpt_width", {gpt}},
      {"gpt_layers", {gpt}},
      {"gpt_heads", {gpt}},
      {"gpt_context", {gpt}},
      {"dropout", {with_dropout}, {"-1", "0"}},
      {"image_size", {image_folder}, {"0"}},
      {"crop", {image_folder}, {""}},
      {"scaled_decoding", {image_folder}, {"true"}},
      {"skip_damaged", {image_folder}, {"0"}},
      {"epochs", {Is("steps", {"0"})}, {"1"}},
      // Optimizer and weights.
      {"momentum", {sgd}, {"0.9"}},
      {"nesterov", {sgd}, {"false"}},
      {"no_weight_decay", {IsNot("weight_decay", {"0"})}, {""}},
      {"ema_decay",
       {IsNot("evaluate", {"false"}), IsNot("evaluate_every", {"0"}), IsNot("checkpoint", {""}),
        IsNot("resume", {"none", ""}), IsNot("evaluate_only", {"false"})},
       {"0"}},
      // Learning rate.
      {"lr_reference_batch", {IsNot("lr_scaling", {"none"})}},
      {"lr_milestones", {Is("schedule", {"step"})}, {""}},
      {"lr_gamma", {Is("schedule", {"step"})}},
      {"lr_final", {Is("schedule", {"cosine"})}},
      {"lr_power", {Is("schedule", {"poly"})}},
      {"lr_warmup_start", {warm_up, warm_up_steps}, {""}},
      // Checkpoints.
      {"checkpoint_keep", {IsNot("checkpoint", {""})}},
      {"init_from", {Is("resume", {"none", "", "auto"})}, {""}},
      // Device and precision.
      {"tf32", {on_gpu}, {"false"}},
      {"cuda_graph", {on_gpu}, {"false"}},
      {"cudnn_benchmark", {on_gpu}, {"false"}},
      {"fused_norm", {on_gpu}, {"false"}},
      {"fused_norm", {IsNot("channels_last", {"false"})}, {"false"}},
      {"channels_last", {of_images}, {"false"}},
      {"weight_copies", {IsNot("precision", {"fp32"})}, {"false"}},
      // Records.
      {"trace_steps", {IsNot("trace", {""})}},
      {"trace_bandwidth", {IsNot("trace", {"", "*.json"})}, {""}},
      {"trace_placement", {IsNot("trace_bandwidth", {""})}},
      {"metrics_host", {has_page}},
      {"metrics_port_file", {has_page}, {""}},
  };
}

std::vector<FlagTopic> WorkerTopics() {
  return {
      {"Who this worker is and where the others are",
       {"rank", "world_size", "local_rank", "master", "port_file", "interface", "run_id", "attempt",
        "servers", "num_servers", "server_tasks"}},
      {"How gradients are exchanged",
       {"topology", "link", "update", "consistency", "compression", "server_weights", "owners",
        "connections", "zero"}},
      {"Parts of a model on several ranks",
       {"mesh", "pipeline_schedule", "micro_batches", "split", "pipeline_link", "sequence_parallel",
        "tensor_link"}},
      {"Replicas or stages in one process", {"data_parallel", "model_parallel"}},
      {"Model and data", {"model",        "stem",
                          "gpt_width",    "gpt_layers",
                          "gpt_heads",    "gpt_context",
                          "dropout",      "activation_checkpointing",
                          "classes",      "describe_model",
                          "data",         "image_size",
                          "crop",         "scaled_decoding",
                          "skip_damaged", "check_data",
                          "sampler",      "prefetch_bytes",
                          "batch_size",   "steps",
                          "epochs",       "warmup_steps",
                          "seed"}},
      {"Optimizer, loss and weights",
       {"optimizer", "momentum", "nesterov", "weight_decay", "no_weight_decay", "max_norm",
        "accumulate", "label_smoothing", "sync_batchnorm", "ema_decay", "allow_nonfinite"}},
      {"Learning rate",
       {"lr", "lr_scaling", "lr_reference_batch", "schedule", "lr_milestones", "lr_gamma",
        "lr_final", "lr_power", "lr_warmup", "lr_warmup_steps", "lr_warmup_start"}},
      {"Checkpoints",
       {"checkpoint", "checkpoint_every", "checkpoint_keep", "checkpoint_best", "resume",
        "init_from", "init_key", "init_skip"}},
      {"Device and precision",
       {"device", "offload", "precision", "tf32", "channels_last", "fused_norm", "weight_copies",
        "cuda_graph", "cudnn_benchmark", "threads", "loader_threads"}},
      {"Sizes of buckets and chunks", {"bucket_bytes", "first_bucket_bytes", "chunk_bytes"}},
      {"Evaluation and records",
       {"evaluate", "evaluate_every", "evaluate_only", "log_every", "metrics_json", "tensorboard",
        "trace", "trace_steps", "trace_bandwidth", "trace_placement"}},
      {"Watching a job from outside",
       {"metrics_port", "metrics_host", "metrics_port_file", "log_format", "reflection"}},
      {"Job files", {"config", "print_config", "write_config"}},
      {"Who may connect", {"tls_cert", "tls_key", "tls_ca", "secret_file", "insecure"}},
      {"Lost peers and slow workers", {"timeout", "failure_timeout", "straggler"}},
  };
}

}  // namespace gradsync
