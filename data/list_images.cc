#include "data/list_images.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

bool IsImageName(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".jpg") || absl::EndsWithIgnoreCase(name, ".jpeg") ||
         absl::EndsWithIgnoreCase(name, ".png");
}

struct Entries {
  std::vector<std::string> folders;
  std::vector<std::string> files;
};

// Whether a folder's entry is a folder itself, or a link to one. Its file system often says so
// without another look.
bool IsFolder(const std::string& path, unsigned char type) {
  if (type != DT_UNKNOWN && type != DT_LNK) return type == DT_DIR;
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<Entries> ReadFolder(const std::string& path) {
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) {
    const absl::string_view why = errno == ENOENT ? " does not exist" : " cannot be opened";
    return absl::ErrnoToStatus(errno, absl::StrCat("image folder ", path, why));
  }
  auto closer = absl::MakeCleanup([folder] { closedir(folder); });
  Entries entries;
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(folder);
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (IsFolder(absl::StrCat(path, "/", name), entry->d_type)) {
      entries.folders.push_back(std::move(name));
    } else if (IsImageName(name)) {
      entries.files.push_back(std::move(name));
    }
  }
  if (errno != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("image folder ", path, " cannot be read"));
  }
  std::sort(entries.files.begin(), entries.files.end());
  return entries;
}

}  // namespace

absl::StatusOr<ImageList> ImageList::Read(const std::string& folder) {
  ImageList list;
  list.folder_ = folder;
  GS_ASSIGN_OR_RETURN(Entries entries, ReadFolder(folder));
  list.classes_ = std::move(entries.folders);
  std::sort(list.classes_.begin(), list.classes_.end());
  if (list.classes_.empty()) {
    return absl::NotFoundError(
        absl::StrCat("image folder ", folder, ": expected a folder for each class, found none"));
  }
  for (size_t label = 0; label < list.classes_.size(); ++label) {
    GS_RETURN_IF_ERROR(list.AddClass(static_cast<int>(label)));
  }
  list.images_.shrink_to_fit();
  list.names_.shrink_to_fit();
  return list;
}

// Folders are sorted by their whole paths, so "a-b" comes between "a" and "a/c", as in torchvision.
absl::Status ImageList::AddClass(int label) {
  std::vector<std::pair<std::string, std::vector<std::string>>> found;
  std::vector<std::string> unread = {classes_[label]};
  int64_t images = 0;
  while (!unread.empty()) {
    std::string path = std::move(unread.back());
    unread.pop_back();
    GS_ASSIGN_OR_RETURN(Entries entries, ReadFolder(absl::StrCat(folder_, "/", path)));
    for (const std::string& name : entries.folders) unread.push_back(absl::StrCat(path, "/", name));
    images += static_cast<int64_t>(entries.files.size());
    found.emplace_back(std::move(path), std::move(entries.files));
  }
  if (images == 0) {
    return absl::NotFoundError(absl::StrCat("image folder ", folder_, "/", classes_[label],
                                            ": expected .jpg, .jpeg or .png files, found none"));
  }
  std::sort(found.begin(), found.end());
  for (const auto& [path, files] : found) {
    for (const std::string& file : files) Add(absl::StrCat(path, "/", file), label);
  }
  return absl::OkStatus();
}

void ImageList::Add(absl::string_view name, int label) {
  images_.push_back({names_.size(), label});
  names_.append(name.data(), name.size());
}

std::string ImageList::path(int64_t index) const {
  const uint64_t begin = images_[index].name;
  const uint64_t end = index + 1 < size() ? images_[index + 1].name : names_.size();
  return absl::StrCat(folder_, "/", absl::string_view(names_).substr(begin, end - begin));
}

}  // namespace gradsync
