#include "worker/model_flags.h"

#include <cstdint>

#include "absl/flags/flag.h"

ABSL_FLAG(int64_t, gpt_width, gradsync::ModelOptions().gpt_width,
          "with --model=gpt: width of what passes between layers, a multiple of --gpt_heads");
ABSL_FLAG(int64_t, gpt_layers, gradsync::ModelOptions().gpt_layers,
          "with --model=gpt: number of layers");
ABSL_FLAG(int64_t, gpt_heads, gradsync::ModelOptions().gpt_heads,
          "with --model=gpt: attention heads of a layer");
ABSL_FLAG(int64_t, gpt_context, gradsync::ModelOptions().gpt_context,
          "with --model=gpt: tokens of a sample, the most that the model sees at once");
ABSL_FLAG(double, dropout, -1,
          "share of values that a model with dropout sets to zero in training, at least 0 and less "
          "than 1; -1: the model's own (vgg16 0.5, gpt 0.1, vit_s_16 0)");
ABSL_FLAG(bool, activation_checkpointing, false,
          "keep only the input of each block (of residual layers, convolutions or attention) for "
          "backward and compute the rest again there: less memory, more time, the same bits");
ABSL_FLAG(
    int64_t, classes, 0,
    "outputs of the model, at least as many as the data has classes (or a text has tokens); 0: "
    "as many as the data has");
ABSL_FLAG(bool, describe_model, false,
          "print the model's blocks, their parameters and outputs, and end without training");

namespace gradsync {

void SetModelFlags(ModelOptions* options) {
  options->gpt_width = absl::GetFlag(FLAGS_gpt_width);
  options->gpt_layers = absl::GetFlag(FLAGS_gpt_layers);
  options->gpt_heads = absl::GetFlag(FLAGS_gpt_heads);
  options->gpt_context = absl::GetFlag(FLAGS_gpt_context);
  options->classes = absl::GetFlag(FLAGS_classes);
  const double dropout = absl::GetFlag(FLAGS_dropout);
  if (dropout != -1) options->dropout = dropout;
  options->activation_checkpointing = absl::GetFlag(FLAGS_activation_checkpointing);
}

bool WantsDescription() { return absl::GetFlag(FLAGS_describe_model); }

}  // namespace gradsync
