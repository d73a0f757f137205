#include "worker/flag_effects.h"

#include <functional>
#include <string>

#include "worker/models/model_options.h"

namespace gradsync {
namespace {

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
      {"connections", {Is("link", {"auto", "grpc"})}, {"0"}},
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

}  // namespace gradsync
