#include "core/base/epoch_samples.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/random.h"

namespace gradsync {
namespace {

constexpr uint64_t kPurpose = 0x73616d706c6572;

void Shuffle(RandomStream random, std::vector<int64_t>& values) {
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random.Below(i)]);
}

// From this many on, newer releases of PyTorch draw 64 bits for each sample.
constexpr int64_t kPytorchLimit = std::numeric_limits<uint32_t>::max() / 20;

// What torch.randperm() does: PyTorch's CPU generator is a Mersenne Twister of 32 bits, whose seed
// is the lower half of the one that is given.
void ShuffleAsPytorch(uint64_t seed, std::vector<int64_t>& values) {
  std::mt19937 random(static_cast<uint32_t>(seed));
  for (size_t i = 0; i + 1 < values.size(); ++i) {
    std::swap(values[i], values[i + random() % (values.size() - i)]);
  }
}

}  // namespace

absl::Status CheckSampler(const SamplerOptions& options) {
  const int64_t size = options.dataset_size, n = options.world_size;
  if (size <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampler: expected a dataset of at least 1 sample, found ", size));
  }
  if (n <= 0 || options.rank < 0 || options.rank >= n) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampler: expected a rank in [0, world_size), found rank ", options.rank,
                     " with world_size ", n));
  }
  if (SamplesPerRank(options) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampler: with drop_last a dataset of ", size, " samples leaves none for each of ", n,
        " ranks; expected at least as many samples as ranks"));
  }
  if (options.order == SampleOrder::kPytorch && size >= kPytorchLimit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampler: expected fewer than ", kPytorchLimit,
        " samples for the order of pytorch, whose releases differ beyond, found ", size));
  }
  return absl::OkStatus();
}

int64_t SamplesPerRank(const SamplerOptions& options) {
  const int64_t size = options.dataset_size, n = options.world_size;
  return options.drop_last ? size / n : (size + n - 1) / n;
}

std::vector<int64_t> SamplesOfEpoch(const SamplerOptions& options, int64_t epoch) {
  std::vector<int64_t> all(options.dataset_size);
  std::iota(all.begin(), all.end(), int64_t{0});
  if (options.shuffle && options.order == SampleOrder::kPytorch) {
    ShuffleAsPytorch(options.seed + static_cast<uint64_t>(epoch), all);
  } else if (options.shuffle) {
    Shuffle(RandomStream(kPurpose, options.seed, static_cast<uint64_t>(epoch)), all);
  }
  std::vector<int64_t> own(SamplesPerRank(options));
  for (size_t p = 0; p < own.size(); ++p) {
    own[p] = all[(p * options.world_size + options.rank) % all.size()];
  }
  return own;
}

}  // namespace gradsync
