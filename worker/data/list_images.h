#ifndef GRADSYNC_WORKER_DATA_LIST_IMAGES_H_
#define GRADSYNC_WORKER_DATA_LIST_IMAGES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// What a folder has beside its images, and how odd some of these are.
struct ImageListRemarks {
  // Of files that are passed over: how many by ending in small letters, such as ".webp"; "" for
  // names without one. With more than 20 endings the others are counted as "other".
  std::map<std::string, int64_t> passed_over;
  // Of those, how many torchvision's ImageFolder would read (.webp, .bmp, .tif, ...): its samples
  // then have other numbers.
  int64_t read_by_torchvision = 0;
  // Links to folders that were read already in the same class, or that lead back to one above: the
  // first, and how many.
  std::string repeated_link;
  int64_t repeated_links = 0;
  int64_t outside_classes = 0;              // images beside the class folders, which belong to none
  std::vector<std::string> hidden_classes;  // those whose name begins with a dot
};

// The images of one folder of class folders, in torchvision's order: classes by name, in each its
// folders by path, in each its files by name, all compared byte by byte. Immutable; thread-safe.
class ImageList {
 public:
  // Looks through `folder`, a folder of class folders, of any depth below each; links are followed,
  // but for those of ImageListRemarks::repeated_link, so loops of links end. An image is a file whose
  // name ends in .jpg, .jpeg or .png, in capitals or not; other files are passed over. Names that
  // begin with a dot are names as others, as for torchvision. Blocks while it reads folders.
  //
  // Errors, each naming the path:
  //   NOT_FOUND: no such folder, no class in it, or a class without an image.
  //   PERMISSION_DENIED, UNKNOWN: the system could not read a folder, with its own words.
  static absl::StatusOr<ImageList> Read(const std::string& folder);

  const ImageListRemarks& remarks() const { return remarks_; }
  // Images whose name is that of a pipe, socket or device: their paths, of the first few.
  const std::vector<std::string>& irregular() const { return irregular_; }

  const std::string& folder() const { return folder_; }
  int64_t size() const { return static_cast<int64_t>(images_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }  // sorted, by label
  int label(int64_t index) const { return images_[index].label; }
  std::string path(int64_t index) const;

  // A digest of the names of classes and images and of their order, which decides labels and numbers:
  // 16 hexadecimal digits, the same wherever the folder is.
  std::string DigestOfNames() const;

 private:
  // A path takes its bytes and no more: there may be millions.
  struct Image {
    uint64_t name = 0;  // where it begins in names_; it ends where the next one begins
    int label = 0;
  };

  struct Reading;
  void Add(absl::string_view name, int label);
  absl::Status AddClass(int label);
  absl::Status AddFolder(Reading* reading, const std::string& path, bool linked);
  void PassOver(absl::string_view name);

  std::string folder_;
  std::vector<std::string> classes_;
  std::vector<Image> images_;
  std::string names_;  // of all images, relative to folder_
  ImageListRemarks remarks_;
  std::vector<std::string> irregular_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_LIST_IMAGES_H_
