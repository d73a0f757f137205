#include "worker/data/sampler.h"

#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
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

absl::string_view SampleOrderName(SampleOrder order) {
  return order == SampleOrder::kPytorch ? "pytorch" : "gradsync";
}

absl::StatusOr<SampleOrder> ParseSampleOrder(absl::string_view name) {
  for (SampleOrder order : {SampleOrder::kOwn, SampleOrder::kPytorch}) {
    if (SampleOrderName(order) == name) return order;
  }
  return FlagError("sampler", "gradsync or pytorch", name);
}

absl::StatusOr<DistributedSampler> DistributedSampler::Create(const SamplerOptions& options) {
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
  const int64_t samples = options.drop_last ? size / n : (size + n - 1) / n;
  if (samples == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampler: with drop_last a dataset of ", size, " samples leaves none for each of ", n,
        " ranks; expected at least as many samples as ranks"));
  }
  if (options.order == SampleOrder::kPytorch && size >= kPytorchLimit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampler: expected fewer than ", kPytorchLimit,
        " samples for the order of pytorch, whose releases differ beyond, found ", size));
  }
  return DistributedSampler(options, samples);
}

std::vector<int64_t> DistributedSampler::Indices(int64_t epoch) const {
  std::vector<int64_t> all(options_.dataset_size);
  std::iota(all.begin(), all.end(), int64_t{0});
  if (options_.shuffle && options_.order == SampleOrder::kPytorch) {
    ShuffleAsPytorch(options_.seed + static_cast<uint64_t>(epoch), all);
  } else if (options_.shuffle) {
    Shuffle(RandomStream(kPurpose, options_.seed, static_cast<uint64_t>(epoch)), all);
  }
  std::vector<int64_t> own(samples_per_rank_);
  for (int64_t p = 0; p < samples_per_rank_; ++p) {
    own[p] = all[(p * options_.world_size + options_.rank) % options_.dataset_size];
  }
  return own;
}

}  // namespace gradsync
