#include "worker/data/dataset.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/sha256.h"
#include "core/base/utf8.h"

namespace gradsync {
namespace {

constexpr size_t kHashedWhole = size_t{16} << 20;
constexpr size_t kBlocks = 256;
constexpr size_t kBlockBytes = kHashedWhole / kBlocks;
constexpr size_t kNameBytes = 40;  // A line with several names must stay readable.

absl::string_view Part(const DataIdentity& identity, size_t part) {
  return absl::ClippedSubstr(identity.contents, part * DataIdentity::kTagBytes,
                             DataIdentity::kTagBytes);
}

}  // namespace

std::string DataIdentity::ToString() const {
  if (contents.empty()) return what;
  return absl::StrCat(what, ", contents ", Sha256Hex(contents).substr(0, 16));
}

size_t DifferentParts(const DataIdentity& a, const DataIdentity& b) {
  const size_t size = std::max(a.contents.size(), b.contents.size());
  size_t different = 0;
  for (size_t part = 0; part * DataIdentity::kTagBytes < size; ++part) {
    different += Part(a, part) != Part(b, part);
  }
  return different;
}

int ExchangedClasses(const DataIdentity& before, const DataIdentity& now) {
  constexpr int kFewest = 3;  // one or two files may have been mended
  std::map<int, int> parts, different;
  for (size_t part = 0; part < now.labels.size(); ++part) {
    ++parts[now.labels[part]];
    different[now.labels[part]] += Part(before, part) != Part(now, part);
  }
  int exchanged = 0;
  for (const auto& [label, count] : parts) {
    exchanged += count >= kFewest && different[label] == count;
  }
  return exchanged;
}

std::string ContentTag(absl::string_view bytes) {
  return Sha256Hex(bytes).substr(0, DataIdentity::kTagBytes);
}

std::string SampledTag(absl::string_view bytes) {
  Sha256 hash;
  const std::string size = absl::StrCat(bytes.size(), ":");
  hash.Update(size.data(), size.size());
  if (bytes.size() <= kHashedWhole) {
    hash.Update(bytes.data(), bytes.size());
  } else {
    const size_t last = bytes.size() - kBlockBytes;
    for (size_t block = 0; block < kBlocks; ++block) {
      const auto begin = static_cast<size_t>(static_cast<double>(last) *
                                             static_cast<double>(block) / (kBlocks - 1));
      hash.Update(bytes.data() + std::min(begin, last), kBlockBytes);
    }
  }
  return hash.HexDigest().substr(0, DataIdentity::kTagBytes);
}

std::string ListNames(const std::vector<std::string>& names, size_t most) {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) {
    shown.push_back(EscapedAsUtf8(names[i], kNameBytes));
  }
  std::string list = absl::StrJoin(shown, ", ");
  if (names.size() > most) absl::StrAppend(&list, " and ", names.size() - most, " more");
  return list;
}

std::string KindOfData(absl::string_view spec) {
  if (spec == "synthetic:32") return "synthetic";
  if (spec.substr(0, 9) == "synthetic") return std::string(spec);
  return std::string(spec.substr(0, spec.find(':')));
}

}  // namespace gradsync
