#include "core/base/utf8.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

constexpr absl::string_view kMore = "...";

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

size_t CharacterBytes(absl::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t bytes = first < 0x80                    ? 1
                       : first >= 0xc2 && first < 0xe0 ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  if (!std::all_of(text.begin() + 1, text.begin() + bytes, Continues)) return 0;
  if (bytes < 3) return bytes;
  const auto second = static_cast<unsigned char>(text[1]);
  // Too long for what they say, surrogates, or beyond the last character.
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second >= 0xa0) ||
      (first == 0xf0 && second < 0x90) || (first == 0xf4 && second >= 0x90)) {
    return 0;
  }
  return bytes;
}

std::string AsUtf8(absl::string_view text, size_t max_bytes) {
  std::string utf8;
  size_t with_more = 0;  // so much of it fits with kMore behind it
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const absl::string_view character =
        bytes == 0 ? absl::string_view(kReplacementCharacter) : text.substr(0, bytes);
    if (utf8.size() + character.size() > max_bytes) {
      utf8.resize(with_more);
      absl::StrAppend(&utf8, kMore);
      return utf8;
    }
    absl::StrAppend(&utf8, character);
    if (utf8.size() + kMore.size() <= max_bytes) with_more = utf8.size();
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return utf8;
}

std::string EscapedAsUtf8(absl::string_view text, size_t max_bytes) {
  std::string escaped;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (bytes == 0 || first < 0x20 || first == 0x7f) {
      absl::StrAppend(&escaped, "\\x", absl::Hex(first, absl::kZeroPad2));
    } else {
      absl::StrAppend(&escaped, text.substr(0, bytes));
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return AsUtf8(escaped, max_bytes);
}

}  // namespace gradsync
