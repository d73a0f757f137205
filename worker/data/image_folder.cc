#include "worker/data/image_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/random.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"
#include "core/program/regular_file.h"
#include "worker/data/decode_image.h"
#include "worker/data/resample.h"
#include "worker/data/rgb_image.h"

namespace gradsync {
namespace {

constexpr uint64_t kPurpose = 0x696d616765666f6c;

absl::Status Unreadable(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat("image ", EscapedAsUtf8(path), " ", why));
}

// Of a file, which may be as large as a disk: more than the largest image takes when it is decoded.
constexpr size_t kMostFileBytes = size_t{512} << 20;

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  absl::StatusOr<std::string> file = ReadRegularFile(path, kMostFileBytes + 1);
  if (file.ok() && file->size() > kMostFileBytes) {
    return Unreadable(path, absl::StrCat("has more than ", kMostFileBytes,
                                         " bytes, which no image that is trained on has"));
  }
  if (file.ok()) return file;
  const absl::string_view cannot =
      absl::IsInvalidArgument(file.status()) ? "is " : "cannot be read: ";
  return Unreadable(path, absl::StrCat(cannot, file.status().message()));
}

// How many files of a split are looked into for its identity, and how far: enough to tell apart
// folders of the same names, and little enough for a file system far away.
constexpr int64_t kFilesOfIdentity = 64;
constexpr int64_t kBytesOfIdentity = 16 << 10;

std::string TagOf(const std::string& path) {
  const auto read = [&]() -> absl::StatusOr<std::string> {
    GS_ASSIGN_OR_RETURN(RegularFile file, RegularFile::Open(path));
    std::string bytes(kBytesOfIdentity, 0);
    GS_ASSIGN_OR_RETURN(const int64_t size, file.Read(bytes.data(), kBytesOfIdentity));
    bytes.resize(static_cast<size_t>(size));
    return absl::StrCat(file.size(), ":", bytes);
  };
  const absl::StatusOr<std::string> start = read();
  return ContentTag(start.ok() ? *start : "unreadable");
}

// "1 file", "3 files".
std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// Of the endings passed over: "2 .webp, 1 .txt, 1 without an ending".
std::string ListEndings(const std::map<std::string, int64_t>& endings) {
  std::vector<std::string> parts;
  for (const auto& [ending, count] : endings) {
    parts.push_back(
        absl::StrCat(count, " ", ending.empty() ? "without an ending" : EscapedAsUtf8(ending, 40)));
  }
  return absl::StrJoin(parts, ", ");
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

// The folder above `directory`, as it is spelled there.
std::string FolderAbove(absl::string_view directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.remove_suffix(1);
  const size_t slash = directory.rfind('/');
  if (slash == absl::string_view::npos) return ".";
  return std::string(directory.substr(0, std::max<size_t>(slash, 1)));
}

absl::StatusOr<ImageList> ListTrain(const std::string& directory) {
  absl::StatusOr<ImageList> list = ImageList::Read(absl::StrCat(directory, "/train"));
  const std::string above = FolderAbove(directory);
  struct stat info;
  // One of the splits was given.
  if (!absl::IsNotFound(list.status()) || stat(directory.c_str(), &info) != 0 ||
      stat(absl::StrCat(above, "/train").c_str(), &info) != 0) {
    return list;
  }
  return absl::NotFoundError(
      absl::StrCat(list.status().message(), "; did you mean --data=imagefolder:", above, "?"));
}

absl::StatusOr<ImageList> ListSplit(const std::string& directory, Split split) {
  if (split == Split::kTrain) return ListTrain(directory);
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
    const auto found = std::find(classes.begin(), classes.end(), name);
    if (found == classes.end() || *found != name) {
      return absl::InvalidArgumentError(
          absl::StrCat("image folder ", list.folder(), ": expected only classes that ",
                       train.folder(), " has too, found ", EscapedAsUtf8(name)));
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
  std::vector<std::string> classes = train.classes();
  const auto make = [&](ImageList list,
                        std::vector<int> labels) -> absl::StatusOr<std::unique_ptr<ImageFolder>> {
    if (!list.irregular().empty() && !options.list_irregular_files) {
      return absl::InvalidArgumentError(
          absl::StrCat("image ", EscapedAsUtf8(list.irregular()[0]),
                       ": expected a regular file, found a pipe, socket or device"));
    }
    return std::unique_ptr<ImageFolder>(
        new ImageFolder(std::move(list), std::move(classes), std::move(labels), split, options));
  };
  if (split == Split::kTrain) {
    GS_ASSIGN_OR_RETURN(std::vector<int> labels, LabelsOf(train, train));
    return make(std::move(train), std::move(labels));
  }
  GS_ASSIGN_OR_RETURN(ImageList list, ListSplit(folder, split));
  GS_ASSIGN_OR_RETURN(std::vector<int> labels, LabelsOf(list, train));
  return make(std::move(list), std::move(labels));
}

std::string ImageFolder::name(int64_t index) const {
  return absl::StrCat("image ", EscapedAsUtf8(list_.path(index)));
}

DataIdentity ImageFolder::identity() const {
  constexpr size_t kMostNames = 4;
  DataIdentity identity;
  // The classes are those of the training split, by which labels are numbered.
  std::string all;
  for (const std::string& name : classes_) absl::StrAppend(&all, name, "/");
  identity.what = absl::StrCat("imagefolder of ", Count(size(), "image"), " in ", classes_.size(),
                               classes_.size() == 1 ? " class (" : " classes (",
                               ListNames(classes_, kMostNames), "), names ",
                               Sha256Hex(absl::StrCat(all, list_.DigestOfNames())).substr(0, 16));
  const int64_t files = std::min(size(), kFilesOfIdentity);
  for (int64_t i = 0; i < files; ++i) {
    identity.contents += TagOf(list_.path(i * size() / files));
    identity.labels.push_back(label(i * size() / files));
  }
  identity.classes = Sha256Hex(all).substr(0, 16);
  return identity;
}

std::vector<std::string> ImageFolder::remarks() const {
  constexpr size_t kMostNames = 20;
  const std::string split = split_ == Split::kTrain ? "training" : "test";
  const ImageListRemarks& odd = list_.remarks();
  const std::string folder = EscapedAsUtf8(list_.folder());
  std::vector<std::string> lines = {absl::StrCat(
      Count(size(), absl::StrCat(split, " image")), " of ", folder, " in ", classes_.size(),
      classes_.size() == 1 ? " class: " : " classes: ", ListNames(classes_, kMostNames))};
  if (!odd.passed_over.empty()) {
    int64_t files = 0;
    for (const auto& [ending, count] : odd.passed_over) files += count;
    lines.push_back(absl::StrCat(
        "passed over ", Count(files, "file"), " of ", folder,
        " whose names do not end in .jpg, .jpeg or .png: ", ListEndings(odd.passed_over)));
    if (odd.read_by_torchvision > 0) {
      lines.back() += absl::StrCat("; torchvision's ImageFolder reads ", odd.read_by_torchvision,
                                   " of them, so its samples have other numbers");
    }
  }
  if (odd.outside_classes > 0) {
    lines.push_back(absl::StrCat("passed over ", Count(odd.outside_classes, "image"), " of ",
                                 folder, " outside of its class folders"));
  }
  if (!odd.hidden_classes.empty()) {
    lines.push_back(absl::StrCat("hidden folders of ", folder,
                                 " that count as classes: ", ListNames(odd.hidden_classes, 4)));
  }
  if (odd.repeated_links > 0) {
    lines.push_back(
        absl::StrCat("passed over ", Count(odd.repeated_links, "link"),
                     " to folders above or to one that the class has already, the first ",
                     EscapedAsUtf8(odd.repeated_link)));
  }
  return lines;
}

Normalisation ImageFolder::normalisation() const {
  if (options_.crop == ImageCrop::kPadded) return {};
  return {{0.485f, 0.456f, 0.406f}, {0.229f, 0.224f, 0.225f}};
}

absl::StatusOr<ImageExample> ImageFolder::Get(int64_t index, absl::Span<uint8_t> scratch) const {
  std::string warning;
  return Evaluate(index, scratch, &warning);
}

absl::StatusOr<std::string> ImageFolder::Inspect(int64_t index, absl::Span<uint8_t> scratch) const {
  std::string warning;
  GS_RETURN_IF_ERROR(Evaluate(index, scratch, &warning).status());
  return warning;
}

absl::StatusOr<ImageExample> ImageFolder::Evaluate(int64_t index, absl::Span<uint8_t> scratch,
                                                   std::string* warning) const {
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
  *warning = decoded->warning;
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
