#include "worker/data_flags.h"

#include <string>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/base/byte_sizes.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "worker/data/image_folder.h"
#include "worker/data/sampler.h"

ABSL_FLAG(int, image_size, 0,
          "height and width of the samples of an image folder, at most 1024; 0: 224");
ABSL_FLAG(std::string, crop, "",
          "how samples are cut out of an image folder's images: resized (RandomResizedCrop, as for "
          "ImageNet) or padded (as for CIFAR-10); empty: resized");
ABSL_FLAG(
    bool, scaled_decoding, true,
    "decode JPEGs at an eighth, a quarter or half of their size where a sample needs no more; "
    "false: in full, for the very bytes of Python's Pillow");
ABSL_FLAG(std::string, sampler, "gradsync",
          "in which order samples come: gradsync, or pytorch, the order of its DistributedSampler");
ABSL_FLAG(gradsync::ByteSize, prefetch_bytes,
          gradsync::ByteSize{gradsync::TrainerOptions().prefetch_bytes},
          "memory for batches that are prepared ahead of the step, of 2 to 8 batches");
ABSL_FLAG(int64_t, skip_damaged, 0,
          "how many files of an image folder may be damaged: each is named, and the next file that "
          "can be read takes its place; 0: a damaged file ends the job");
ABSL_FLAG(
    bool, check_data, false,
    "read and decode every sample once, on --loader_threads threads (0: all cores), print all "
    "files that cannot be read, and end without training, with exit code 2 if there are any");

namespace gradsync {
namespace {

constexpr int kLargestImage = 1024;

absl::Status ImagesFromFlags(ImageFolderOptions* images) {
  const int size = absl::GetFlag(FLAGS_image_size);
  if (size < 0 || size > kLargestImage) {
    return FlagError("image_size", absl::StrCat("0 to ", kLargestImage), absl::StrCat(size));
  }
  if (size != 0) images->image_size = size;
  const std::string crop = absl::GetFlag(FLAGS_crop);
  if (crop == "padded") {
    images->crop = ImageCrop::kPadded;
  } else if (!crop.empty() && crop != "resized") {
    return FlagError("crop", "resized or padded", crop);
  }
  images->scaled_decoding = absl::GetFlag(FLAGS_scaled_decoding);
  if (absl::GetFlag(FLAGS_skip_damaged) < 0) {
    return FlagError("skip_damaged", "at least 0", absl::StrCat(absl::GetFlag(FLAGS_skip_damaged)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DataOptionsFromFlags(TrainerOptions* options) {
  GS_RETURN_IF_ERROR(ImagesFromFlags(&options->dataset.images));
  options->dataset.skip_damaged = absl::GetFlag(FLAGS_skip_damaged);
  GS_ASSIGN_OR_RETURN(options->sampler, ParseSampleOrder(absl::GetFlag(FLAGS_sampler)));
  options->prefetch_bytes = absl::GetFlag(FLAGS_prefetch_bytes).bytes;
  return absl::OkStatus();
}

bool WantsDataCheck() { return absl::GetFlag(FLAGS_check_data); }

}  // namespace gradsync
