#include "worker/job_flags.h"

#include <cstdint>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/program/program_main.h"
#include "worker/checkpoint/read_weights.h"

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

ABSL_FLAG(
    absl::Duration, failure_timeout, absl::Seconds(10),
    "a process of the job that gives no sign of life for longer is lost, and one that works but "
    "gets nothing done for longer is stuck, which ends the job; at most half of --timeout counts; "
    "inf: nobody is watched");

ABSL_FLAG(
    bool, evaluate_only, false,
    "train no step: measure loss and accuracy of the weights of --init_from or --resume on the "
    "test split, and end");
ABSL_FLAG(
    std::string, checkpoint, "",
    "folder for checkpoints, of which DIR/latest is the newest; one is written after the last "
    "step in any case; empty: none");
ABSL_FLAG(std::string, checkpoint_every, "",
          "how often --checkpoint writes one: N, after every so many steps, or Ne, epochs; empty: "
          "only after the last step");
ABSL_FLAG(int, checkpoint_keep, gradsync::CheckpointOptions().keep,
          "how many checkpoints stay, the newest; DIR/best stays besides");
ABSL_FLAG(
    bool, checkpoint_best, false,
    "measure accuracy on the test split at each checkpoint; DIR/best is the most accurate, by "
    "the average of the weights with --ema_decay");
ABSL_FLAG(std::string, resume, "none",
          "what to go on from: none; auto, as --resume alone, the newest whole checkpoint of "
          "--checkpoint, or nothing if there is none; or a checkpoint's path");
ABSL_FLAG(std::string, init_from, "",
          "file with weights that a new job starts from: a state dict of torch.save (.pt, .pth) or "
          "safetensors, with the model's names and sizes");
ABSL_FLAG(std::string, init_key, "",
          "which entry of --init_from's file has the weights, such as model_ema; empty: the one "
          "that has the model's names, state_dict or model rather than an average");
ABSL_FLAG(std::string, init_skip, "",
          "regular expression (RE2): weights whose names it matches somewhere are not taken from "
          "--init_from and keep their initial values, such as '^fc\\.' for another head; empty: "
          "none");

namespace gradsync {
namespace {

// What a resumed job may have otherwise: how it is run, for how long, and what it shows. All other
// flags decide what is trained, or its bits; a new one does, unless it is named here.
constexpr absl::string_view kMayChange[] = {
    "topology",        "link",
    "update",          "servers",
    "num_servers",     "server_weights",
    "owners",          "connections",
    "steps",           "epochs",
    "warmup_steps",    "evaluate",
    "evaluate_every",  "straggler",
    "checkpoint",      "checkpoint_keep",
    "checkpoint_best", "checkpoint_every",
    "resume",          "init_from",
    "init_key",        "init_skip",
    "failure_timeout", "zero",
    "offload",         "server_tasks",
    "trace",           "trace_steps",
    "trace_bandwidth", "trace_placement",
    "skip_damaged",    "check_data",
    "evaluate_only",
};

absl::Status ParseEvery(absl::string_view text, CheckpointOptions* options) {
  if (text.empty()) return absl::OkStatus();
  absl::string_view number = text;
  int64_t* const every =
      absl::ConsumeSuffix(&number, "e") ? &options->every_epochs : &options->every_steps;
  if (absl::SimpleAtoi(number, every) && *every >= 1) return absl::OkStatus();
  return FlagError("checkpoint_every", "a number of steps such as 100, or of epochs such as 2e",
                   text);
}

absl::Status CheckInit(const CheckpointOptions& options) {
  if (options.init_from.empty()) {
    if (!options.init_key.empty()) {
      return FlagError("init_key", "none without --init_from", options.init_key);
    }
    if (!options.init_skip.empty()) {
      return FlagError("init_skip", "none without --init_from", options.init_skip);
    }
  }
  const std::string error = ErrorInRegex(options.init_skip);
  if (error.empty()) return absl::OkStatus();
  return FlagError("init_skip", absl::StrCat("a regular expression (", error, ")"),
                   options.init_skip);
}

}  // namespace

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

absl::StatusOr<absl::Duration> FailureTimeoutFromFlags() {
  const absl::Duration timeout = absl::GetFlag(FLAGS_failure_timeout);
  if (timeout < absl::Milliseconds(100)) {
    return FlagError("failure_timeout", "at least 100ms", absl::FormatDuration(timeout));
  }
  return timeout;
}

absl::StatusOr<CheckpointOptions> CheckpointOptionsFromFlags(
    const std::map<std::string, std::string>& flags) {
  CheckpointOptions options;
  options.folder = UserPath(absl::GetFlag(FLAGS_checkpoint));
  GS_RETURN_IF_ERROR(ParseEvery(absl::GetFlag(FLAGS_checkpoint_every), &options));
  options.keep = absl::GetFlag(FLAGS_checkpoint_keep);
  options.best = absl::GetFlag(FLAGS_checkpoint_best);
  options.init_from = UserPath(absl::GetFlag(FLAGS_init_from));
  options.init_key = absl::GetFlag(FLAGS_init_key);
  options.init_skip = absl::GetFlag(FLAGS_init_skip);
  GS_RETURN_IF_ERROR(CheckInit(options));
  const std::string resume = absl::GetFlag(FLAGS_resume);
  if (resume == "auto") {
    options.resume = CheckpointOptions::Resume::kAuto;
  } else if (resume != "none" && !resume.empty()) {
    options.resume = CheckpointOptions::Resume::kPath;
    options.resume_path = UserPath(resume);
  }
  options.weights_only = absl::GetFlag(FLAGS_evaluate_only);
  if (options.weights_only && options.init_from.empty() &&
      options.resume == CheckpointOptions::Resume::kNone) {
    return FlagError("evaluate_only", "--init_from=FILE or --resume, which name the weights",
                     "neither");
  }
  if (options.keep < 1) {
    return FlagError("checkpoint_keep", "at least 1", absl::StrCat(options.keep));
  }
  const bool needs_folder = options.every_steps > 0 || options.every_epochs > 0 || options.best ||
                            options.resume == CheckpointOptions::Resume::kAuto;
  if (needs_folder && options.folder.empty()) {
    return FlagError("checkpoint",
                     "a folder with --checkpoint_every, --checkpoint_best or --resume=auto", "");
  }
  options.job = flags;
  for (absl::string_view name : kMayChange) options.job.erase(std::string(name));
  return options;
}

absl::Status RefuseCheckpoints(const CheckpointOptions& options, absl::string_view where) {
  if (!options.wanted()) return absl::OkStatus();
  if (!options.folder.empty()) {
    return FlagError("checkpoint", absl::StrCat("none ", where), options.folder);
  }
  return FlagError("resume", absl::StrCat("none ", where, ", or --init_from for the weights alone"),
                   options.resume_path);
}

}  // namespace gradsync
