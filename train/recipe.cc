#include "train/recipe.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

constexpr double kPi = 3.14159265358979323846;

absl::Status CheckNumber(absl::string_view name, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("recipe: expected a finite ", name, " of at least 0, found ", value));
}

double ScheduledRate(const RecipeOptions& o, int64_t step) {
  switch (o.schedule) {
    case Schedule::kConstant:
      return o.base;
    case Schedule::kStep: {
      const auto reached = std::upper_bound(o.milestones.begin(), o.milestones.end(), step);
      return o.base * std::pow(o.gamma, static_cast<double>(reached - o.milestones.begin()));
    }
    case Schedule::kCosine: {
      const double span = static_cast<double>(o.total_steps - o.warmup_steps);
      const double done = std::clamp(static_cast<double>(step - o.warmup_steps) / span, 0.0, 1.0);
      return o.final + (o.base - o.final) * (1 + std::cos(kPi * done)) / 2;
    }
  }
  return o.base;
}

}  // namespace

absl::Status ValidateRecipe(const RecipeOptions& options) {
  GS_RETURN_IF_ERROR(CheckNumber("learning rate", options.base));
  GS_RETURN_IF_ERROR(CheckNumber("final learning rate", options.final));
  GS_RETURN_IF_ERROR(CheckNumber("gamma", options.gamma));
  if (options.warmup_steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe: expected warm-up of at least 0 steps, found ", options.warmup_steps));
  }
  if (options.schedule == Schedule::kCosine && options.total_steps <= options.warmup_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("recipe: expected a cosine schedule to end after its warm-up of ",
                     options.warmup_steps, " steps, found total_steps ", options.total_steps));
  }
  for (size_t i = 0; i < options.milestones.size(); ++i) {
    const int64_t least = i == 0 ? 0 : options.milestones[i - 1] + 1;
    if (options.milestones[i] < least) {
      return absl::InvalidArgumentError(absl::StrCat("recipe: expected milestone ", i,
                                                     " to be at least step ", least, ", found ",
                                                     options.milestones[i]));
    }
  }
  return absl::OkStatus();
}

double LearningRate(const RecipeOptions& options, int64_t step) {
  const double rate = ScheduledRate(options, step);
  if (step >= options.warmup_steps) return rate;
  return rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
}

absl::StatusOr<Schedule> ParseSchedule(absl::string_view name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "step") return Schedule::kStep;
  if (name == "cosine") return Schedule::kCosine;
  return absl::InvalidArgumentError(
      absl::StrCat("unknown schedule '", name, "': expected constant, step or cosine"));
}

}  // namespace gradsync
