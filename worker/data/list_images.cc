#include "worker/data/list_images.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <iterator>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"

namespace gradsync {
namespace {

bool IsImageName(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".jpg") || absl::EndsWithIgnoreCase(name, ".jpeg") ||
         absl::EndsWithIgnoreCase(name, ".png");
}

// What torchvision's IMG_EXTENSIONS has beside the above.
bool IsOtherImageName(absl::string_view ending) {
  for (const char* other : {".bmp", ".pgm", ".ppm", ".tif", ".tiff", ".webp"}) {
    if (ending == other) return true;
  }
  return false;
}

constexpr size_t kMostEndings = 20;
constexpr size_t kMostIrregular = 20;

enum class Kind { kFolder, kLinkToFolder, kFile, kIrregular };

struct Entries {
  std::vector<std::string> folders;
  std::vector<std::string> links;  // to folders
  std::vector<std::string> files;
  std::vector<std::string> irregular;  // among `files`
  std::vector<std::string> others;
};

// Of a folder's entry; its file system often says so without another look. A link that leads nowhere
// is a file, which cannot be read.
Kind KindOf(const std::string& path, unsigned char type) {
  if (type == DT_DIR) return Kind::kFolder;
  if (type == DT_REG) return Kind::kFile;
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return Kind::kFile;
  if (S_ISREG(info.st_mode)) return Kind::kFile;
  if (!S_ISDIR(info.st_mode)) return Kind::kIrregular;
  if (type == DT_UNKNOWN && lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return Kind::kFolder;
  }
  return Kind::kLinkToFolder;
}

// Python sorts names by characters, as bytes of UTF-8 are sorted, and takes a byte that is no character's
// for one of U+DC80 to U+DCFF (PEP 383).
std::string SortKey(absl::string_view name) {
  std::string key;
  while (!name.empty()) {
    const size_t bytes = CharacterBytes(name);
    const auto byte = static_cast<unsigned char>(name[0]);
    if (bytes > 0) {
      absl::StrAppend(&key, name.substr(0, bytes));
    } else {
      key += {'\xed', static_cast<char>(byte < 0xc0 ? 0xb2 : 0xb3),
              static_cast<char>(0x80 | (byte & 0x3f))};
    }
    name.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return key;
}

bool IsBefore(const std::string& a, const std::string& b) {
  const auto is_ascii = [](char c) { return absl::ascii_isascii(static_cast<unsigned char>(c)); };
  if (std::all_of(a.begin(), a.end(), is_ascii) || std::all_of(b.begin(), b.end(), is_ascii)) {
    return a < b;
  }
  return SortKey(a) < SortKey(b);
}

absl::StatusOr<Entries> ReadFolder(const std::string& path) {
  DIR* const folder = opendir(path.c_str());
  if (folder == nullptr) {
    const absl::string_view why = errno == ENOENT ? " does not exist" : " cannot be opened";
    return absl::ErrnoToStatus(errno, absl::StrCat("image folder ", EscapedAsUtf8(path), why));
  }
  auto closer = absl::MakeCleanup([folder] { closedir(folder); });
  Entries entries;
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(folder);
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const Kind kind = KindOf(absl::StrCat(path, "/", name), entry->d_type);
    if (kind == Kind::kFolder) {
      entries.folders.push_back(std::move(name));
    } else if (kind == Kind::kLinkToFolder) {
      entries.links.push_back(std::move(name));
    } else if (IsImageName(name)) {
      if (kind == Kind::kIrregular) entries.irregular.push_back(name);
      entries.files.push_back(std::move(name));
    } else {
      entries.others.push_back(std::move(name));
    }
  }
  if (errno != 0) {
    return absl::ErrnoToStatus(
        errno, absl::StrCat("image folder ", EscapedAsUtf8(path), " cannot be read"));
  }
  for (std::vector<std::string>* names : {&entries.folders, &entries.links, &entries.files}) {
    std::sort(names->begin(), names->end(), IsBefore);
  }
  return entries;
}

using FolderId = std::pair<dev_t, ino_t>;

// `folder` and all that it lies in: a link to one of them leads back to itself, and on the way to the
// images of other classes and splits.
std::set<FolderId> FoldersAbove(std::string folder) {
  std::set<FolderId> above;
  struct stat info;
  // The root lies in itself.
  while (stat(folder.c_str(), &info) == 0 && above.emplace(info.st_dev, info.st_ino).second) {
    folder += "/..";
  }
  return above;
}

}  // namespace

// A class while its folders are read.
struct ImageList::Reading {
  struct Unread {
    std::string path;
    bool linked = false;  // reached through a link, itself or one above
  };

  std::vector<std::pair<std::string, std::vector<std::string>>> found;
  std::deque<Unread> unread;
  std::deque<Unread> links;
  std::set<FolderId> seen;
  int64_t images = 0;
};

absl::StatusOr<ImageList> ImageList::Read(const std::string& folder) {
  ImageList list;
  list.folder_ = folder;
  GS_ASSIGN_OR_RETURN(Entries entries, ReadFolder(folder));
  list.classes_ = std::move(entries.folders);
  std::move(entries.links.begin(), entries.links.end(), std::back_inserter(list.classes_));
  std::sort(list.classes_.begin(), list.classes_.end(), IsBefore);
  list.remarks_.outside_classes = static_cast<int64_t>(entries.files.size());
  for (const std::string& name : entries.others) list.PassOver(name);
  if (list.classes_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("image folder ", folder, ": expected a folder for each class, found none"));
  }
  for (size_t label = 0; label < list.classes_.size(); ++label) {
    const std::string& name = list.classes_[label];
    if (name[0] == '.') list.remarks_.hidden_classes.push_back(name);
    GS_RETURN_IF_ERROR(list.AddClass(static_cast<int>(label)));
  }
  list.images_.shrink_to_fit();
  list.names_.shrink_to_fit();
  return list;
}

// Folders are sorted by their whole paths, so "a-b" comes between "a" and "a/c", as in torchvision.
absl::Status ImageList::AddClass(int label) {
  Reading reading;
  reading.seen = FoldersAbove(folder_);
  reading.unread.push_back({classes_[label], /*linked=*/false});
  // Links last, so that what is reached with and without one has the path without.
  while (!reading.unread.empty() || !reading.links.empty()) {
    std::deque<Reading::Unread>& next = reading.unread.empty() ? reading.links : reading.unread;
    const Reading::Unread folder = std::move(next.front());
    next.pop_front();
    GS_RETURN_IF_ERROR(AddFolder(&reading, folder.path, folder.linked));
  }
  if (reading.images == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("image folder ", EscapedAsUtf8(absl::StrCat(folder_, "/", classes_[label])),
                     ": expected .jpg, .jpeg or .png files, found none",
                     classes_[label][0] == '.' ? " (a hidden folder is a class too)" : ""));
  }
  std::sort(reading.found.begin(), reading.found.end(),
            [](const auto& a, const auto& b) { return IsBefore(a.first, b.first); });
  for (const auto& [path, files] : reading.found) {
    for (const std::string& file : files) Add(absl::StrCat(path, "/", file), label);
  }
  return absl::OkStatus();
}

absl::Status ImageList::AddFolder(Reading* reading, const std::string& path, bool linked) {
  const std::string whole = absl::StrCat(folder_, "/", path);
  struct stat info;
  const bool known = stat(whole.c_str(), &info) == 0;
  // Only links can lead to a folder twice. Some file systems number several folders alike, so others
  // are not asked.
  if (known && !reading->seen.emplace(info.st_dev, info.st_ino).second && linked) {
    if (remarks_.repeated_links++ == 0) remarks_.repeated_link = whole;
    return absl::OkStatus();
  }
  GS_ASSIGN_OR_RETURN(Entries entries, ReadFolder(whole));
  for (const std::string& name : entries.folders) {
    (linked ? reading->links : reading->unread).push_back({absl::StrCat(path, "/", name), linked});
  }
  for (const std::string& name : entries.links) {
    reading->links.push_back({absl::StrCat(path, "/", name), /*linked=*/true});
  }
  for (const std::string& name : entries.irregular) {
    if (irregular_.size() < kMostIrregular) irregular_.push_back(absl::StrCat(whole, "/", name));
  }
  for (const std::string& name : entries.others) PassOver(name);
  reading->images += static_cast<int64_t>(entries.files.size());
  reading->found.emplace_back(path, std::move(entries.files));
  return absl::OkStatus();
}

void ImageList::PassOver(absl::string_view name) {
  const size_t dot = name.rfind('.');
  std::string ending;
  if (dot != absl::string_view::npos && dot > 0) ending = absl::AsciiStrToLower(name.substr(dot));
  remarks_.read_by_torchvision += IsOtherImageName(ending);
  std::map<std::string, int64_t>& counts = remarks_.passed_over;
  if (counts.size() >= kMostEndings && counts.count(ending) == 0) ending = "other";
  ++counts[ending];
}

std::string ImageList::DigestOfNames() const {
  // No name has a zero byte.
  constexpr char kEnd = 0;
  Sha256 hash;
  for (const std::string& name : classes_) {
    hash.Update(name.data(), name.size());
    hash.Update(&kEnd, 1);
  }
  for (size_t i = 0; i < images_.size(); ++i) {
    hash.Update(&kEnd, 1);
    const uint64_t begin = images_[i].name;
    const uint64_t end = i + 1 < images_.size() ? images_[i + 1].name : names_.size();
    hash.Update(names_.data() + begin, end - begin);
  }
  return hash.HexDigest().substr(0, 16);
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
