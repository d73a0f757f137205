#include "worker/data/open_dataset.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status_macros.h"
#include "worker/data/cifar10.h"
#include "worker/data/image_folder.h"
#include "worker/data/skip_damaged.h"
#include "worker/data/synthetic_dataset.h"

namespace gradsync {

absl::StatusOr<std::shared_ptr<const ImageDataset>> OpenDataset(absl::string_view spec, Split split,
                                                                const DatasetOptions& more) {
  absl::string_view pixels = spec;
  const bool sized = absl::ConsumePrefix(&pixels, "synthetic:") && !pixels.empty();
  if (spec == "synthetic" || sized) {
    SyntheticDataset::Options options;
    if (sized && (!absl::SimpleAtoi(pixels, &options.pixels) || options.pixels < 8 ||
                  options.pixels > 1024 || options.pixels % 2 != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data '", spec, "': expected synthetic:PIXELS with an even number from 8 to 1024"));
    }
    options.seed = more.seed;
    options.split = split;
    return std::make_shared<const SyntheticDataset>(options);
  }
  absl::string_view directory = spec;
  if (absl::ConsumePrefix(&directory, "cifar10:") && !directory.empty()) {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<Cifar10> dataset, Cifar10::Open(directory, split));
    return std::shared_ptr<const ImageDataset>(std::move(dataset));
  }
  directory = spec;
  if (absl::ConsumePrefix(&directory, "imagefolder:") && !directory.empty()) {
    ImageFolderOptions images = more.images;
    images.list_irregular_files |= more.skip_damaged > 0;
    GS_ASSIGN_OR_RETURN(std::shared_ptr<const ImageDataset> dataset,
                        ImageFolder::Open(directory, split, images));
    if (more.skip_damaged == 0) return dataset;
    return SkipDamaged(std::move(dataset), {more.skip_damaged, more.say});
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown data '", spec,
                   "': expected synthetic, synthetic:PIXELS, cifar10:DIR or imagefolder:DIR"));
}

}  // namespace gradsync
