#include "core/base/straggler.h"

#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/errors.h"

namespace gradsync {
namespace {

constexpr char kForms[] =
    "RANK:FACTOR or random:SEED:PROBABILITY:FACTOR, with a factor of at least 1";

uint64_t Mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// From 0 to below 1.
double Uniform(uint64_t seed, uint64_t rank, uint64_t step) {
  return static_cast<double>(Mix(Mix(Mix(seed) ^ rank) ^ step) >> 11) * 0x1p-53;
}

bool ParseFactor(absl::string_view text, double* factor) {
  return absl::SimpleAtod(text, factor) && std::isfinite(*factor) && *factor >= 1;
}

}  // namespace

absl::StatusOr<Straggler> Straggler::Parse(absl::string_view text) {
  Straggler result;
  if (text.empty()) return result;
  result.text_ = std::string(text);
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ':');
  bool good = false;
  if (parts.size() == 2) {
    good = absl::SimpleAtoi(parts[0], &result.rank_) && result.rank_ >= 0 &&
           ParseFactor(parts[1], &result.factor_);
  } else if (parts.size() == 4) {
    good = parts[0] == "random" && absl::SimpleAtoi(parts[1], &result.seed_) &&
           absl::SimpleAtod(parts[2], &result.probability_) && result.probability_ >= 0 &&
           result.probability_ <= 1 && ParseFactor(parts[3], &result.factor_);
  }
  if (!good) return FlagError("straggler", kForms, text);
  return result;
}

absl::Status Straggler::CheckWorkers(int workers) const {
  if (rank_ < workers) return absl::OkStatus();
  return FlagError("straggler",
                   absl::StrCat("a rank from 0 to ", workers - 1, " of ", workers, " workers"),
                   text_);
}

double Straggler::Factor(int rank, int64_t step) const {
  if (text_.empty()) return 1;
  if (rank_ >= 0) return rank == rank_ ? factor_ : 1;
  const double draw = Uniform(seed_, static_cast<uint64_t>(rank), static_cast<uint64_t>(step));
  return draw < probability_ ? factor_ : 1;
}

}  // namespace gradsync
