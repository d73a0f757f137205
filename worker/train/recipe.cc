#include "worker/train/recipe.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"
#include "core/base/portable_math.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr double kPi = 3.14159265358979323846;

absl::Status CheckNumber(absl::string_view flag, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return FlagError(flag, "a finite number of at least 0", absl::StrCat(value));
}

absl::string_view NameOf(Schedule schedule) {
  switch (schedule) {
    case Schedule::kConstant:
      return "constant";
    case Schedule::kStep:
      return "step";
    case Schedule::kCosine:
      return "cosine";
    case Schedule::kPoly:
      return "poly";
  }
  return "";
}

std::string MilestonesAsGiven(const RecipeOptions& options) {
  if (options.milestone_epochs.empty()) return absl::StrJoin(options.milestones, ",");
  return absl::StrCat(absl::StrJoin(options.milestone_epochs, "e,"), "e");
}

// A whole number of less than 10 digits; SimpleAtoi would take a sign and spaces, and the bound
// keeps products in range.
bool ParseCount(absl::string_view digits, int64_t* count) {
  return digits.size() < 10 && digits.find_first_not_of("0123456789") == digits.npos &&
         absl::SimpleAtoi(digits, count);
}

bool EndsWithJob(Schedule schedule) {
  return schedule == Schedule::kCosine || schedule == Schedule::kPoly;
}

// 0 at the end of the warm-up, 1 at the end of the job.
double DoneAfterWarmUp(const RecipeOptions& o, int64_t step) {
  const double span = static_cast<double>(o.total_steps - o.warmup_steps);
  return std::clamp(static_cast<double>(step - o.warmup_steps) / span, 0.0, 1.0);
}

double ScheduledRate(const RecipeOptions& o, int64_t step) {
  switch (o.schedule) {
    case Schedule::kConstant:
      return o.base;
    case Schedule::kStep: {
      const auto reached = std::upper_bound(o.milestones.begin(), o.milestones.end(), step);
      return o.base * PortablePow(o.gamma, int64_t{reached - o.milestones.begin()});
    }
    case Schedule::kCosine:
      return o.final + (o.base - o.final) * (1 + PortableCos(kPi * DoneAfterWarmUp(o, step))) / 2;
    case Schedule::kPoly:
      return o.base * PortablePow(1 - DoneAfterWarmUp(o, step), o.power);
  }
  return o.base;
}

}  // namespace

absl::Status ValidateRecipe(const RecipeOptions& options) {
  GS_RETURN_IF_ERROR(CheckNumber("lr", options.base));
  GS_RETURN_IF_ERROR(CheckNumber("lr_final", options.final));
  GS_RETURN_IF_ERROR(CheckNumber("lr_gamma", options.gamma));
  GS_RETURN_IF_ERROR(CheckNumber("lr_power", options.power));
  if (options.warmup_start.has_value() &&
      !(*options.warmup_start >= 0 && *options.warmup_start <= 1)) {
    return FlagError("lr_warmup_start", "a factor from 0 to 1",
                     absl::StrCat(*options.warmup_start));
  }
  if (options.warmup_steps < 0) {
    return FlagError("lr_warmup_steps", "at least 0", absl::StrCat(options.warmup_steps));
  }
  if (EndsWithJob(options.schedule) && options.total_steps <= options.warmup_steps) {
    return FlagError(
        "lr_warmup_steps",
        absl::StrCat("less than the job's ", options.total_steps,
                     " steps with --schedule=", NameOf(options.schedule), ", which ends with them"),
        absl::StrCat(options.warmup_steps));
  }
  for (size_t i = 0; i < options.milestones.size(); ++i) {
    const int64_t least = i == 0 ? 0 : options.milestones[i - 1] + 1;
    if (options.milestones[i] < least) {
      return FlagError("lr_milestones",
                       absl::StrCat("milestone ", i, " to be at least step ", least),
                       absl::StrCat(options.milestones[i]));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RecipeOptions> FitRecipe(const RecipeOptions& options, int64_t steps,
                                        int64_t steps_per_epoch) {
  RecipeOptions fitted = options;
  fitted.total_steps = steps;
  for (int64_t epoch : options.milestone_epochs) {
    fitted.milestones.push_back(epoch * steps_per_epoch);
  }
  fitted.milestone_epochs.clear();
  fitted.warmup_steps += options.warmup_epochs * steps_per_epoch;
  fitted.warmup_epochs = 0;
  GS_RETURN_IF_ERROR(ValidateRecipe(fitted));
  if (options.schedule != Schedule::kStep) return fitted;
  if (fitted.milestones.empty()) {
    return FlagError("lr_milestones",
                     "the steps (100,200) or epochs (30e,60e) after which the learning rate drops, "
                     "with --schedule=step",
                     "");
  }
  if (fitted.milestones.back() >= steps) {
    const std::string in_steps = options.milestone_epochs.empty()
                                     ? ""
                                     : absl::StrCat(", of which an epoch has ", steps_per_epoch);
    return FlagError("lr_milestones",
                     absl::StrCat("numbers below the job's ", steps, " steps", in_steps),
                     MilestonesAsGiven(options));
  }
  return fitted;
}

absl::Status ParseMilestones(const std::vector<std::string>& words, RecipeOptions* recipe) {
  for (const std::string& word : words) {
    absl::string_view digits = word;
    const bool epochs = absl::ConsumeSuffix(&digits, "e");
    int64_t number = 0;
    const bool good = ParseCount(digits, &number) && number > 0;
    (epochs ? recipe->milestone_epochs : recipe->milestones).push_back(number);
    if (!good || !(recipe->milestones.empty() || recipe->milestone_epochs.empty())) {
      return FlagError("lr_milestones",
                       "steps (100,200) or epochs (30e,60e), whole numbers of at least 1",
                       absl::StrJoin(words, ","));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseWarmUp(absl::string_view word, RecipeOptions* recipe) {
  if (word.empty()) return absl::OkStatus();
  if (recipe->warmup_steps != 0 || recipe->warmup_epochs != 0) {
    return FlagError("lr_warmup", "none with --lr_warmup_steps", word);
  }
  absl::string_view digits = word;
  const bool epochs = absl::ConsumeSuffix(&digits, "e");
  int64_t& count = epochs ? recipe->warmup_epochs : recipe->warmup_steps;
  if (ParseCount(digits, &count)) return absl::OkStatus();
  return FlagError("lr_warmup", "a number of steps (500) or epochs (5e)", word);
}

absl::StatusOr<RecipeOptions> ScaleRate(const RecipeOptions& options, int64_t global_batch) {
  if (options.reference_batch < 1) {
    return FlagError("lr_reference_batch", "at least 1", absl::StrCat(options.reference_batch));
  }
  RecipeOptions scaled = options;
  const double factor =
      static_cast<double>(global_batch) / static_cast<double>(options.reference_batch);
  switch (options.scaling) {
    case RateScaling::kNone:
      break;
    case RateScaling::kLinear:
      scaled.base *= factor;
      break;
    case RateScaling::kSqrt:
      scaled.base *= std::sqrt(factor);
      break;
  }
  return scaled;
}

double LearningRate(const RecipeOptions& options, int64_t step) {
  const double rate = ScheduledRate(options, step);
  if (step >= options.warmup_steps) return rate;
  if (options.warmup_start.has_value()) {
    const double start = *options.warmup_start;
    return rate * (start + (1 - start) * static_cast<double>(step) /
                               static_cast<double>(options.warmup_steps));
  }
  return rate * static_cast<double>(step + 1) / static_cast<double>(options.warmup_steps);
}

absl::StatusOr<Schedule> ParseSchedule(absl::string_view name) {
  if (name == "constant") return Schedule::kConstant;
  if (name == "step") return Schedule::kStep;
  if (name == "cosine") return Schedule::kCosine;
  if (name == "poly") return Schedule::kPoly;
  return FlagError("schedule", "constant, step, cosine or poly", name);
}

absl::StatusOr<RateScaling> ParseRateScaling(absl::string_view name) {
  if (name == "none") return RateScaling::kNone;
  if (name == "linear") return RateScaling::kLinear;
  if (name == "sqrt") return RateScaling::kSqrt;
  return FlagError("lr_scaling", "none, linear or sqrt", name);
}

}  // namespace gradsync
