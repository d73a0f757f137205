#include "train/open_dataset.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "train/cifar10.h"
#include "train/synthetic_dataset.h"

namespace gradsync {

absl::StatusOr<std::shared_ptr<const ImageDataset>> OpenDataset(absl::string_view spec, Split split,
                                                                uint64_t seed) {
  if (spec == "synthetic") {
    SyntheticDataset::Options options;
    options.seed = seed;
    options.split = split;
    return std::make_shared<const SyntheticDataset>(options);
  }
  absl::string_view directory = spec;
  if (absl::ConsumePrefix(&directory, "cifar10:") && !directory.empty()) {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<Cifar10> dataset, Cifar10::Open(directory, split));
    return std::shared_ptr<const ImageDataset>(std::move(dataset));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown data '", spec, "': expected synthetic or cifar10:DIR"));
}

}  // namespace gradsync
