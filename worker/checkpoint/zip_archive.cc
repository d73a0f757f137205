#include "worker/checkpoint/zip_archive.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50;
constexpr uint32_t kDirectoryEntry = 0x02014b50;
constexpr uint32_t kDirectoryEnd = 0x06054b50;
constexpr uint32_t kDirectoryEnd64 = 0x06064b50;
constexpr uint32_t kDirectoryEnd64Locator = 0x07064b50;
constexpr size_t kLocalHeaderBytes = 30;
constexpr size_t kDirectoryEntryBytes = 46;
constexpr size_t kDirectoryEndBytes = 22;
constexpr size_t kDirectoryEnd64Bytes = 56;
constexpr size_t kLocatorBytes = 20;
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kPaddingField = 0x4246;
constexpr uint64_t kInZip64 = 0xFFFFFFFF;
constexpr size_t kAlignment = 64;
constexpr int64_t kMostEntries = 65535;
constexpr uint16_t kVersion = 20;
constexpr uint16_t kZip64Version = 45;
constexpr size_t kZip64EntryBytes = 4 + 3 * 8;  // in the directory: two sizes and an offset
constexpr uint16_t kFirstDay = 0x0021;  // 1980-01-01: two archives of the same content are alike

// What torch.save writes after torch.serialization.set_crc32_options(False).
constexpr uint32_t kNoChecksum = 0;

template <typename T>
void Put(T value, std::string* to) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  to->append(bytes, sizeof(T));
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("zip archive: ", what));
}

// A part of the archive; reads beyond it are an error.
class Fields {
 public:
  explicit Fields(absl::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T At(size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

 private:
  absl::string_view bytes_;
};

// `size` bytes of `all` from `begin`. Errors: DATA_LOSS.
absl::StatusOr<absl::string_view> Part(absl::string_view all, uint64_t begin, uint64_t size,
                                       absl::string_view what) {
  if (begin > all.size() || size > all.size() - begin) {
    return Damaged(
        absl::StrCat(what, " at byte ", begin, " ends beyond the file's ", all.size(), " bytes"));
  }
  return all.substr(begin, size);
}

struct Directory {
  uint64_t begin = 0;
  uint64_t size = 0;
  uint64_t entries = 0;
};

absl::StatusOr<Directory> FindDirectory64(absl::string_view archive, size_t end) {
  const absl::Status missing =
      Damaged(absl::StrCat("its zip64 locator is missing before byte ", end));
  if (end < kLocatorBytes) return missing;
  const Fields locator(archive.substr(end - kLocatorBytes, kLocatorBytes));
  if (locator.At<uint32_t>(0) != kDirectoryEnd64Locator) return missing;
  GS_ASSIGN_OR_RETURN(const absl::string_view bytes,
                      Part(archive, locator.At<uint64_t>(8), kDirectoryEnd64Bytes,
                           "the end of its zip64 directory"));
  const Fields fields(bytes);
  if (fields.At<uint32_t>(0) != kDirectoryEnd64) {
    return Damaged(
        absl::StrCat("its zip64 directory is missing at byte ", locator.At<uint64_t>(8)));
  }
  return Directory{fields.At<uint64_t>(48), fields.At<uint64_t>(40), fields.At<uint64_t>(32)};
}

absl::StatusOr<Directory> FindDirectory(absl::string_view archive) {
  const absl::Status cut_off =
      Damaged(absl::StrCat("cut off at byte ", archive.size(), ", no directory"));
  if (archive.size() < kDirectoryEndBytes) return cut_off;
  // A comment of up to 65535 bytes may follow.
  const size_t last = archive.size() - kDirectoryEndBytes;
  const size_t first = last > 65535 ? last - 65535 : 0;
  for (size_t end = last + 1; end-- > first;) {
    const Fields fields(archive.substr(end, kDirectoryEndBytes));
    if (fields.At<uint32_t>(0) != kDirectoryEnd) continue;
    const Directory found{fields.At<uint32_t>(16), fields.At<uint32_t>(12),
                          fields.At<uint16_t>(10)};
    if (found.begin == kInZip64 || found.size == kInZip64 || found.entries == kMostEntries) {
      return FindDirectory64(archive, end);
    }
    return found;
  }
  return cut_off;
}

struct Numbers {
  uint64_t compressed = 0;
  uint64_t size = 0;
  uint64_t offset = 0;
};

// Takes from the zip64 field what did not fit into the entry, in its fixed order.
absl::Status ReadZip64Field(absl::string_view extra, Numbers* numbers) {
  const bool wanted =
      numbers->size == kInZip64 || numbers->compressed == kInZip64 || numbers->offset == kInZip64;
  while (wanted && extra.size() >= 4) {
    const Fields fields(extra);
    const size_t size = fields.At<uint16_t>(2);
    if (size > extra.size() - 4) break;
    absl::string_view field = extra.substr(4, size);
    extra.remove_prefix(4 + size);
    if (fields.At<uint16_t>(0) != kZip64Field) continue;
    for (uint64_t* number : {&numbers->size, &numbers->compressed, &numbers->offset}) {
      if (*number != kInZip64) continue;
      if (field.size() < 8) return Damaged("a zip64 size is missing");
      *number = Fields(field).At<uint64_t>(0);
      field.remove_prefix(8);
    }
    return absl::OkStatus();
  }
  return wanted ? Damaged("a zip64 size is missing") : absl::OkStatus();
}

absl::StatusOr<absl::string_view> ContentAt(absl::string_view archive, const Numbers& numbers,
                                            const std::string& name) {
  GS_ASSIGN_OR_RETURN(const absl::string_view header,
                      Part(archive, numbers.offset, kLocalHeaderBytes, name));
  const Fields fields(header);
  if (fields.At<uint32_t>(0) != kLocalHeader) {
    return Damaged(
        absl::StrCat(name, " is not where the directory has it, at byte ", numbers.offset));
  }
  const uint64_t begin =
      numbers.offset + kLocalHeaderBytes + fields.At<uint16_t>(26) + fields.At<uint16_t>(28);
  return Part(archive, begin, numbers.size, name);
}

// kTables[k][b]: what byte b does to the checksum when k more zero bytes follow, so that eight
// bytes are looked up at once.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0u);
    tables[0][b] = crc;
  }
  for (int k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

absl::Status ZipWriter::Add(absl::string_view name, absl::string_view content) {
  if (name.size() > 65535) {
    return absl::OutOfRangeError(absl::StrCat(
        "zip archive: expected a name of at most 65535 bytes, found one of ", name.size()));
  }
  const uint32_t crc = Crc32(content);
  const uint64_t size = content.size();
  const uint64_t offset = bytes_.size();
  const bool wide = size > largest_ || offset > largest_;
  const uint32_t short_size = static_cast<uint32_t>(wide ? kInZip64 : size);
  const uint16_t version = wide ? kZip64Version : kVersion;
  // The fields from "version needed" to the sizes are the same in header and directory.
  std::string common;
  Put(version, &common);
  Put<uint16_t>(0, &common);  // flags
  Put<uint16_t>(0, &common);  // stored
  Put<uint16_t>(0, &common);  // time
  Put<uint16_t>(kFirstDay, &common);
  Put<uint32_t>(crc, &common);
  Put(short_size, &common);
  Put(short_size, &common);
  Put<uint16_t>(static_cast<uint16_t>(name.size()), &common);
  std::string sizes;  // what the zip64 fields of both begin with
  if (wide) {
    Put(size, &sizes);
    Put(size, &sizes);
  }

  std::string extra;
  if (wide) {
    Put(kZip64Field, &extra);
    Put(static_cast<uint16_t>(sizes.size()), &extra);
    extra += sizes;
  }
  const size_t begin = bytes_.size() + kLocalHeaderBytes + name.size() + extra.size();
  // A field of padding has at least its own header.
  const size_t padding = 4 + (2 * kAlignment - (begin + 4) % kAlignment) % kAlignment;
  Put(kPaddingField, &extra);
  Put(static_cast<uint16_t>(padding - 4), &extra);
  extra.append(padding - 4, '\0');
  Put(kLocalHeader, &bytes_);
  bytes_ += common;
  Put(static_cast<uint16_t>(extra.size()), &bytes_);
  bytes_.append(name.data(), name.size());
  bytes_ += extra;
  bytes_.append(content.data(), content.size());

  Put(kDirectoryEntry, &directory_);
  Put(version, &directory_);  // version made by
  directory_ += common;
  Put(static_cast<uint16_t>(wide ? kZip64EntryBytes : 0), &directory_);  // extra
  Put<uint16_t>(0, &directory_);                                         // comment
  Put<uint16_t>(0, &directory_);                                         // disk
  Put<uint16_t>(0, &directory_);                                         // attributes, inner
  Put<uint32_t>(0, &directory_);                                         // and outer
  Put(static_cast<uint32_t>(wide ? kInZip64 : offset), &directory_);
  directory_.append(name.data(), name.size());
  if (wide) {
    Put(kZip64Field, &directory_);
    Put(static_cast<uint16_t>(kZip64EntryBytes - 4), &directory_);
    directory_ += sizes;
    Put(offset, &directory_);
  }
  ++entries_;
  return absl::OkStatus();
}

absl::StatusOr<std::string> ZipWriter::Finish() {
  const uint64_t begin = bytes_.size();
  const uint64_t size = directory_.size();
  const bool wide = begin > largest_ || size > largest_ || entries_ >= kMostEntries;
  bytes_ += directory_;
  if (wide) {
    const uint64_t end = bytes_.size();
    Put(kDirectoryEnd64, &bytes_);
    Put<uint64_t>(kDirectoryEnd64Bytes - 12, &bytes_);  // of what follows
    Put(kZip64Version, &bytes_);                        // version made by
    Put(kZip64Version, &bytes_);
    Put<uint32_t>(0, &bytes_);  // this disk
    Put<uint32_t>(0, &bytes_);  // the directory's
    Put(static_cast<uint64_t>(entries_), &bytes_);
    Put(static_cast<uint64_t>(entries_), &bytes_);
    Put(size, &bytes_);
    Put(begin, &bytes_);
    Put(kDirectoryEnd64Locator, &bytes_);
    Put<uint32_t>(0, &bytes_);  // the disk of the record above
    Put(end, &bytes_);
    Put<uint32_t>(1, &bytes_);  // disks
  }
  const uint16_t entries = static_cast<uint16_t>(wide ? kMostEntries : entries_);
  Put(kDirectoryEnd, &bytes_);
  Put<uint16_t>(0, &bytes_);  // this disk
  Put<uint16_t>(0, &bytes_);  // the directory's
  Put(entries, &bytes_);
  Put(entries, &bytes_);
  Put(static_cast<uint32_t>(wide ? kInZip64 : size), &bytes_);
  Put(static_cast<uint32_t>(wide ? kInZip64 : begin), &bytes_);
  Put<uint16_t>(0, &bytes_);  // comment
  return std::move(bytes_);
}

absl::StatusOr<std::vector<ZipEntry>> ReadZip(absl::string_view archive) {
  GS_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(archive));
  GS_ASSIGN_OR_RETURN(absl::string_view left,
                      Part(archive, directory.begin, directory.size, "its directory"));
  std::vector<ZipEntry> entries;
  std::set<std::string> names;
  // Entries that lie upon one another could each be as large as the archive.
  uint64_t unclaimed = archive.size();
  for (uint64_t i = 0; i < directory.entries; ++i) {
    const std::string at = absl::StrCat(" at byte ", left.data() - archive.data());
    if (left.size() < kDirectoryEntryBytes) {
      return Damaged(absl::StrCat("its directory is cut off", at));
    }
    const Fields fields(left);
    if (fields.At<uint32_t>(0) != kDirectoryEntry) {
      return Damaged(absl::StrCat("its directory is not one", at));
    }
    const size_t name_bytes = fields.At<uint16_t>(28);
    const size_t extra_bytes = fields.At<uint16_t>(30);
    const size_t comment_bytes = fields.At<uint16_t>(32);
    if (left.size() - kDirectoryEntryBytes < name_bytes + extra_bytes + comment_bytes) {
      return Damaged(absl::StrCat("its directory is cut off", at));
    }
    ZipEntry entry;
    entry.name = std::string(left.substr(kDirectoryEntryBytes, name_bytes));
    const std::string shown = absl::CHexEscape(absl::string_view(entry.name).substr(0, 200));
    Numbers numbers{fields.At<uint32_t>(20), fields.At<uint32_t>(24), fields.At<uint32_t>(42)};
    GS_RETURN_IF_ERROR(
        ReadZip64Field(left.substr(kDirectoryEntryBytes + name_bytes, extra_bytes), &numbers));
    entry.stored = (fields.At<uint16_t>(8) & 1) == 0 && fields.At<uint16_t>(10) == 0;
    if (!names.insert(entry.name).second) {
      return absl::InvalidArgumentError(absl::StrCat("zip archive: ", shown, " is there twice"));
    }
    if (entry.stored) {
      if (numbers.compressed != numbers.size) {
        return Damaged(absl::StrCat(shown, " has two different sizes in the directory", at));
      }
      GS_ASSIGN_OR_RETURN(entry.content, ContentAt(archive, numbers, shown));
      if (entry.content.size() > unclaimed) {
        return Damaged(absl::StrCat("its entries have more bytes than its ", archive.size(), at));
      }
      unclaimed -= entry.content.size();
      const uint32_t crc = fields.At<uint32_t>(16);
      if (crc != kNoChecksum && Crc32(entry.content) != crc) {
        return Damaged(absl::StrCat(shown, " at byte ", entry.content.data() - archive.data(),
                                    " has another checksum than it was written with"));
      }
    }
    entries.push_back(std::move(entry));
    left.remove_prefix(kDirectoryEntryBytes + name_bytes + extra_bytes + comment_bytes);
  }
  return entries;
}

uint32_t Crc32(absl::string_view bytes) {
  uint32_t crc = 0xFFFFFFFFu;
  const char* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint32_t low, high;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, at + 4, 4);
    low ^= crc;
    crc = kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xFF] ^ kTables[2][(high >> 8) & 0xFF] ^
          kTables[1][(high >> 16) & 0xFF] ^ kTables[0][high >> 24];
  }
  for (; left > 0; ++at, --left) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<unsigned char>(*at)) & 0xFF];
  }
  return ~crc;
}

}  // namespace gradsync
