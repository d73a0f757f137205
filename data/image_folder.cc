#include "data/image_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "data/decode_image.h"
#include "data/random_crop.h"
#include "data/resample.h"

namespace gradsync {
namespace {

constexpr uint64_t kPurpose = 0x696d616765666f6c;

absl::Status Unreadable(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("image ", path, " ", why));
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return Unreadable(path, absl::ErrnoToStatus(errno, "cannot be opened").message());
  }
  auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  std::string text;
  if (fstat(fd, &info) == 0) text.resize(static_cast<size_t>(info.st_size));
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = read(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Unreadable(path, absl::ErrnoToStatus(errno, "cannot be read").message());
    if (n == 0) break;
    done += static_cast<size_t>(n);
  }
  text.resize(done);
  return text;
}

// In how many eighths of its size a part of `have` x `have_height` pixels is decoded, so that it
// still has as many as are wanted, if it has. Of the other eighths libjpeg-turbo decodes 3 no
// faster than 4, and 5, 6 and 7 slower than all 8: only for these four it has vector instructions.
int Eighths(int have, int want, int have_height, int want_height) {
  for (const int eighths : {1, 2, 4}) {
    if (int64_t{have} * eighths >= int64_t{8} * want &&
        int64_t{have_height} * eighths >= int64_t{8} * want_height) {
      return eighths;
    }
  }
  return 8;
}

// The part [begin, begin + size) of a file's axis as `count` pixels, of an image of `pixels` pixels
// that is decoded in `eighths`.
ResampleAxis PartOf(int begin, int size, int count, int eighths, int pixels) {
  const double scale = eighths / 8.0;
  ResampleAxis axis;
  axis.origin = begin * scale;
  axis.step = size * scale / count;
  axis.count = count;
  axis.low = static_cast<int>(std::floor(begin * scale));
  axis.high = std::min(static_cast<int>(std::ceil((begin + size) * scale)), pixels);
  return axis;
}

// The centre of an axis that is resized to `resized` pixels: `count` of them, where torchvision's
// CenterCrop takes them.
ResampleAxis CentreOf(int size, int resized, int count, int eighths, int pixels) {
  ResampleAxis axis = PartOf(0, size, resized, eighths, pixels);
  axis.first = static_cast<int>(std::nearbyint((resized - count) / 2.0));
  axis.count = count;
  return axis;
}

absl::StatusOr<ImageList> ListSplit(const std::string& directory, Split split) {
  if (split == Split::kTrain) return ImageList::Read(absl::StrCat(directory, "/train"));
  for (const char* name : {"/val", "/test"}) {
    const std::string folder = absl::StrCat(directory, name);
    struct stat info;
    if (stat(folder.c_str(), &info) == 0) return ImageList::Read(folder);
  }
  return absl::NotFoundError(absl::StrCat("image folder ", directory,
                                          ": expected a folder val or test in it, found neither"));
}

absl::StatusOr<std::vector<int>> LabelsOf(const ImageList& list, const ImageList& train) {
  std::vector<int> labels;
  const std::vector<std::string>& classes = train.classes();
  for (const std::string& name : list.classes()) {
    const auto found = std::lower_bound(classes.begin(), classes.end(), name);
    if (found == classes.end() || *found != name) {
      return absl::InvalidArgumentError(absl::StrCat("image folder ", list.folder(),
                                                     ": expected only classes that ",
                                                     train.folder(), " has too, found ", name));
    }
    labels.push_back(static_cast<int>(found - classes.begin()));
  }
  return labels;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ImageFolder>> ImageFolder::Open(absl::string_view directory,
                                                               Split split,
                                                               const ImageFolderOptions& options) {
  const std::string folder(directory);
  GS_ASSIGN_OR_RETURN(ImageList train, ListSplit(folder, Split::kTrain));
  const int classes = static_cast<int>(train.classes().size());
  if (split == Split::kTrain) {
    GS_ASSIGN_OR_RETURN(std::vector<int> labels, LabelsOf(train, train));
    return std::unique_ptr<ImageFolder>(
        new ImageFolder(std::move(train), std::move(labels), classes, options));
  }
  GS_ASSIGN_OR_RETURN(ImageList list, ListSplit(folder, split));
  GS_ASSIGN_OR_RETURN(std::vector<int> labels, LabelsOf(list, train));
  return std::unique_ptr<ImageFolder>(
      new ImageFolder(std::move(list), std::move(labels), classes, options));
}

Normalisation ImageFolder::normalisation() const {
  if (options_.crop == ImageCrop::kPadded) return {};
  return {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
}

absl::StatusOr<ImageExample> ImageFolder::Get(int64_t index, absl::Span<uint8_t> scratch) const {
  const std::string path = list_.path(index);
  GS_ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  const absl::StatusOr<ImageSize> size = ReadImageSize(file);
  if (!size.ok()) return Unreadable(path, size.status().message());
  const int wanted = options_.image_size;
  const int64_t shorter = augments() ? int64_t{wanted} * 256 / 224 : wanted;
  const bool wide = size->width >= size->height;
  const int64_t longer =
      shorter * std::max(size->width, size->height) / std::min(size->width, size->height);
  const int width = static_cast<int>(wide ? longer : shorter);
  const int height = static_cast<int>(wide ? shorter : longer);
  DecodeOptions decode;
  if (options_.scaled_decoding) {
    decode.eighths = Eighths(size->width, width, size->height, height);
  }
  const absl::StatusOr<DecodedImage> decoded = DecodeImage(file, decode);
  if (!decoded.ok()) return Unreadable(path, decoded.status().message());
  const RgbImage& image = decoded->image;
  Resample(image, CentreOf(size->width, width, wanted, decoded->eighths, image.width),
           CentreOf(size->height, height, wanted, decoded->eighths, image.height),
           /*mirror=*/false, scratch.data());
  return ImageExample{scratch.data(), label(index)};
}

absl::StatusOr<ImageExample> ImageFolder::GetAugmented(const AugmentKey& key,
                                                       absl::Span<uint8_t> scratch) const {
  if (!augments()) return Get(key.sample, scratch);
  const std::string path = list_.path(key.sample);
  GS_ASSIGN_OR_RETURN(const std::string file, ReadFile(path));
  const absl::StatusOr<ImageSize> size = ReadImageSize(file);
  if (!size.ok()) return Unreadable(path, size.status().message());
  RandomStream random(kPurpose, key.seed, static_cast<uint64_t>(key.epoch),
                      static_cast<uint64_t>(key.sample));
  const CropBox box = RandomResizedCrop(*size, random);
  const bool mirror = (random.Next() >> 63) != 0;
  const int wanted = options_.image_size;
  DecodeOptions decode;
  decode.rows = box.top + box.height;
  if (options_.scaled_decoding) {
    decode.eighths = Eighths(box.width, wanted, box.height, wanted);
  }
  const absl::StatusOr<DecodedImage> decoded = DecodeImage(file, decode);
  if (!decoded.ok()) return Unreadable(path, decoded.status().message());
  const RgbImage& image = decoded->image;
  Resample(image, PartOf(box.left, box.width, wanted, decoded->eighths, image.width),
           PartOf(box.top, box.height, wanted, decoded->eighths, image.height), mirror,
           scratch.data());
  return ImageExample{scratch.data(), label(key.sample)};
}

}  // namespace gradsync
