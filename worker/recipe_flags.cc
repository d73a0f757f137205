#include "worker/recipe_flags.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"
#include "core/plan/optimizer_spec.h"
#include "worker/train/recipe.h"

ABSL_FLAG(std::string, optimizer, "sgd", "optimizer: sgd, adam or adamw");
ABSL_FLAG(double, momentum, 0.9, "momentum of sgd, at least 0 and less than 1");
ABSL_FLAG(bool, nesterov, false, "use Nesterov's momentum with sgd");
ABSL_FLAG(
    absl::optional<double>, weight_decay, absl::nullopt,
    "L2 penalty (sgd, adam) or decoupled decay (adamw); empty: sgd 0.0005, adam 0, adamw 0.01");
ABSL_FLAG(std::vector<std::string>, no_weight_decay, {},
          "parameters without weight decay: norm (of normalisation layers), bias, vectors (all of "
          "fewer than 2 dimensions), or names of parameters, in which * stands for anything");
ABSL_FLAG(double, max_norm, 0, "clip gradients to this global norm; 0: do not clip");
ABSL_FLAG(int64_t, accumulate, gradsync::TrainerOptions().accumulate,
          "batches of --batch_size per optimizer step of a worker, whose gradients are averaged "
          "before they are exchanged; the last step of an epoch averages what is left of it");
ABSL_FLAG(double, label_smoothing, gradsync::TrainerOptions().label_smoothing,
          "share of each training target, 0 to 1, that is spread evenly over all classes");
ABSL_FLAG(
    bool, sync_batchnorm, false,
    "normalise by the moments of all workers' batches together, in every layer with BatchNorm; "
    "the workers then meet twice per layer and batch");
ABSL_FLAG(double, ema_decay, gradsync::TrainerOptions().ema_decay,
          "keep an exponential moving average of the weights with this decay per step, such as "
          "0.999, which evaluations, DIR/best and model_ema.pt of checkpoints are of; 0: none");
ABSL_FLAG(double, lr, 0.01, "learning rate");
ABSL_FLAG(std::string, lr_scaling, "none",
          "what the global batch (--batch_size, --accumulate and workers multiplied) does to --lr: "
          "none; linear, in proportion to --lr_reference_batch; or sqrt, by the root of that");
ABSL_FLAG(int64_t, lr_reference_batch, gradsync::RecipeOptions().reference_batch,
          "with --lr_scaling: the global batch, in samples, for which --lr is meant");
ABSL_FLAG(std::string, schedule, "constant",
          "how the learning rate changes: constant; step (--lr_milestones, --lr_gamma); cosine, "
          "from --lr at the end of the warm-up to --lr_final at the end of the job; or poly, to 0 "
          "there (--lr_power)");
ABSL_FLAG(std::vector<std::string>, lr_milestones, {},
          "with --schedule=step: when the learning rate drops, after steps (100,200) or epochs "
          "(30e,60e)");
ABSL_FLAG(double, lr_gamma, gradsync::RecipeOptions().gamma,
          "with --schedule=step: the factor by which each drop multiplies the learning rate");
ABSL_FLAG(double, lr_final, gradsync::RecipeOptions().final,
          "with --schedule=cosine: the learning rate at the end of the job");
ABSL_FLAG(double, lr_power, gradsync::RecipeOptions().power,
          "with --schedule=poly: the power of the share of steps that is left");
ABSL_FLAG(std::string, lr_warmup, "",
          "for how long the learning rate rises to --lr: steps (500) or epochs (5e)");
ABSL_FLAG(int64_t, lr_warmup_steps, 0, "steps over which the learning rate rises to --lr");
ABSL_FLAG(
    absl::optional<double>, lr_warmup_start, absl::nullopt,
    "share of the learning rate, 0 to 1, at the first step of the warm-up; empty: one part of "
    "as many as the warm-up has steps");

namespace gradsync {
namespace {

// Those of torch.optim for Adam and AdamW.
double DefaultWeightDecay(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return 5e-4;
    case OptimizerKind::kAdam:
      return 0;
    case OptimizerKind::kAdamW:
      return 1e-2;
  }
  return 0;
}

absl::StatusOr<OptimizerKind> KindFromFlag() {
  const std::string name = absl::GetFlag(FLAGS_optimizer);
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    if (OptimizerKindName(kind) == name) return kind;
  }
  return FlagError("optimizer", "sgd, adam or adamw", name);
}

// What OptimizerSpec::Validate() would refuse by its own names, and a momentum by which steps grow
// for ever.
absl::Status CheckGroup(OptimizerKind kind, const OptimizerGroup& group) {
  if (!(group.weight_decay >= 0 && std::isfinite(group.weight_decay))) {
    return FlagError("weight_decay", "a finite number of at least 0",
                     absl::StrCat(group.weight_decay));
  }
  if (kind != OptimizerKind::kSgd) return absl::OkStatus();
  if (!(group.momentum >= 0 && group.momentum < 1)) {
    return FlagError("momentum", "at least 0 and less than 1", absl::StrCat(group.momentum));
  }
  if (group.nesterov && group.momentum == 0) {
    return FlagError("momentum", "above 0 with --nesterov", "0");
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimizerSpec> OptimizerFromFlags() {
  OptimizerSpec spec;
  GS_ASSIGN_OR_RETURN(spec.kind, KindFromFlag());
  OptimizerGroup group;
  group.weight_decay = absl::GetFlag(FLAGS_weight_decay).value_or(DefaultWeightDecay(spec.kind));
  group.momentum = absl::GetFlag(FLAGS_momentum);
  group.nesterov = absl::GetFlag(FLAGS_nesterov);
  GS_RETURN_IF_ERROR(CheckGroup(spec.kind, group));
  spec.groups.push_back(group);
  return spec;
}

absl::Status LearningRateFromFlags(RecipeOptions* recipe) {
  GS_ASSIGN_OR_RETURN(recipe->schedule, ParseSchedule(absl::GetFlag(FLAGS_schedule)));
  recipe->base = absl::GetFlag(FLAGS_lr);
  GS_ASSIGN_OR_RETURN(recipe->scaling, ParseRateScaling(absl::GetFlag(FLAGS_lr_scaling)));
  recipe->reference_batch = absl::GetFlag(FLAGS_lr_reference_batch);
  recipe->gamma = absl::GetFlag(FLAGS_lr_gamma);
  recipe->final = absl::GetFlag(FLAGS_lr_final);
  recipe->power = absl::GetFlag(FLAGS_lr_power);
  GS_RETURN_IF_ERROR(ParseMilestones(absl::GetFlag(FLAGS_lr_milestones), recipe));
  recipe->warmup_steps = absl::GetFlag(FLAGS_lr_warmup_steps);
  GS_RETURN_IF_ERROR(ParseWarmUp(absl::GetFlag(FLAGS_lr_warmup), recipe));
  recipe->warmup_start = absl::GetFlag(FLAGS_lr_warmup_start);
  return absl::OkStatus();
}

}  // namespace

absl::Status ResolveRecipeDefaults(std::vector<FlagRecord>* flags) {
  if (absl::GetFlag(FLAGS_weight_decay).has_value()) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const OptimizerKind kind, KindFromFlag());
  absl::SetFlag(&FLAGS_weight_decay, DefaultWeightDecay(kind));
  for (FlagRecord& flag : *flags) {
    if (flag.name == "weight_decay") flag.value = FlagValues().at("weight_decay");
  }
  return absl::OkStatus();
}

absl::Status RecipeFromFlags(TrainerOptions* options) {
  GS_ASSIGN_OR_RETURN(options->optimizer, OptimizerFromFlags());
  options->no_weight_decay = absl::GetFlag(FLAGS_no_weight_decay);
  options->max_norm = absl::GetFlag(FLAGS_max_norm);
  options->accumulate = absl::GetFlag(FLAGS_accumulate);
  options->label_smoothing = absl::GetFlag(FLAGS_label_smoothing);
  options->sync_batchnorm = absl::GetFlag(FLAGS_sync_batchnorm);
  options->ema_decay = absl::GetFlag(FLAGS_ema_decay);
  return LearningRateFromFlags(&options->recipe);
}

absl::Status CheckRecipe(const JobSpec& job, int world_size, const TrainerOptions& options) {
  const std::string consistency = ConsistencyName(job.consistency);
  const bool one_pace = job.consistency.bulk();
  if (options.sync_batchnorm && job.topology == Topology::kLocal && world_size > 1) {
    return FlagError("sync_batchnorm", "false with --topology=local, where workers do not meet",
                     "true");
  }
  if (options.sync_batchnorm && !one_pace) {
    return FlagError("sync_batchnorm",
                     absl::StrCat("false with --consistency=", consistency,
                                  ", where workers do not go at one pace"),
                     "true");
  }
  if (options.ema_decay > 0 && !one_pace) {
    return FlagError("ema_decay",
                     absl::StrCat("0 with --consistency=", consistency,
                                  ", where workers have other weights during training"),
                     absl::StrCat(options.ema_decay));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
