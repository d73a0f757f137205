// Zip archives whose entries are stored, not compressed: the container of torch.save.

#ifndef GRADSYNC_WORKER_CHECKPOINT_ZIP_ARCHIVE_H_
#define GRADSYNC_WORKER_CHECKPOINT_ZIP_ARCHIVE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// Builds an archive in memory. Contents begin at multiples of 64 bytes, so that a reader may map
// them. Sizes, offsets and numbers of entries that the first format of zip has no room for are
// written as zip64 has them, and only those. Not thread-safe.
class ZipWriter {
 public:
  // `largest`: above it, a size or an offset is one for zip64. Tests make it small.
  explicit ZipWriter(uint64_t largest = 0xFFFFFFFE) : largest_(largest) {}

  // `name` has at most 65535 bytes. Errors: OUT_OF_RANGE for a longer one.
  absl::Status Add(absl::string_view name, absl::string_view content);

  // The archive. Call it once, last. Errors: as Add().
  absl::StatusOr<std::string> Finish();

 private:
  const uint64_t largest_;
  std::string bytes_;
  std::string directory_;
  int64_t entries_ = 0;
};

struct ZipEntry {
  std::string name;
  absl::string_view content;  // of the archive's bytes
  bool stored = true;         // false: compressed or encrypted, and `content` is empty
};

// The entries of an archive of any size, zip64 included, in the directory's order; those that are
// stored have a checksum that is right, or none. Nothing outside `archive` is read, whatever it
// says. Errors: DATA_LOSS for what is cut off, overlaps its end, or has another checksum, and for
// entries that have more bytes together than the archive;
// INVALID_ARGUMENT naming an entry that is there twice.
absl::StatusOr<std::vector<ZipEntry>> ReadZip(absl::string_view archive);

// The checksum of zip archives: CRC-32 with the polynomial 0x04C11DB7, reflected (ISO 3309).
uint32_t Crc32(absl::string_view bytes);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_CHECKPOINT_ZIP_ARCHIVE_H_
