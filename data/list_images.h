#ifndef GRADSYNC_DATA_LIST_IMAGES_H_
#define GRADSYNC_DATA_LIST_IMAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The images of one folder of class folders, in torchvision's order: classes by name, in each its
// folders by path, in each its files by name, all compared byte by byte. Immutable; thread-safe.
class ImageList {
 public:
  // Looks through `folder`, a folder of class folders, of any depth below each; links are followed.
  // An image is a file whose name ends in .jpg, .jpeg or .png, in capitals or not; other files are
  // left out. Blocks while it reads folders.
  //
  // Errors, each naming the path:
  //   NOT_FOUND: no such folder, no class in it, or a class without an image.
  //   PERMISSION_DENIED, UNKNOWN: the system could not read a folder, with its own words.
  static absl::StatusOr<ImageList> Read(const std::string& folder);

  const std::string& folder() const { return folder_; }
  int64_t size() const { return static_cast<int64_t>(images_.size()); }
  const std::vector<std::string>& classes() const { return classes_; }  // sorted, by label
  int label(int64_t index) const { return images_[index].label; }
  std::string path(int64_t index) const;

 private:
  // A path takes its bytes and no more: there may be millions.
  struct Image {
    uint64_t name = 0;  // where it begins in names_; it ends where the next one begins
    int label = 0;
  };

  void Add(absl::string_view name, int label);
  absl::Status AddClass(int label);

  std::string folder_;
  std::vector<std::string> classes_;
  std::vector<Image> images_;
  std::string names_;  // of all images, relative to folder_
};

}  // namespace gradsync

#endif  // GRADSYNC_DATA_LIST_IMAGES_H_
