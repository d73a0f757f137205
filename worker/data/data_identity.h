// What a dataset is, apart from where it lies: two copies in different folders have the same
// identity. Ranks compare it before their first step, and a resumed job with its checkpoint's.
#ifndef GRADSYNC_WORKER_DATA_DATA_IDENTITY_H_
#define GRADSYNC_WORKER_DATA_DATA_IDENTITY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace gradsync {

// Of one split.
struct DataIdentity {
  // In words, beginning with the kind as --data spells it: "imagefolder of 6 images in 2 classes
  // (ant, bee), names 1f3a5b7c9d0e2468". UTF-8 in one line, whatever bytes names have. The digest
  // is of all that decides which sample has which number and label.
  std::string what;
  // A digest of the samples' bytes, in parts of kTagBytes, each of one file or of all: as many parts
  // in each identity of equal `what`. Empty for data that are computed.
  std::string contents;

  static constexpr size_t kTagBytes = 8;

  // Both in words.
  std::string ToString() const;
};

// How many of the parts of `contents` differ.
size_t DifferentParts(const DataIdentity& a, const DataIdentity& b);

// DataIdentity::kTagBytes hexadecimal digits for these bytes.
std::string ContentTag(absl::string_view bytes);

// A tag of many bytes: of their number and all of them up to 16 MiB, and of 256 blocks of 64 KiB,
// evenly spread from the first byte to the last, where there are more. Reads what it looks at.
std::string SampledTag(absl::string_view bytes);

// The first `most` names and how many more there are: "ant, bee and 998 more". Bytes of a name that
// are no UTF-8 or no printable character are escaped.
std::string ListNames(const std::vector<std::string>& names, size_t most);

// The kind of data that a --data flag names, without its path: "imagefolder", "synthetic:16".
std::string KindOfData(absl::string_view spec);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_DATA_IDENTITY_H_
