// Text that may be any bytes as what messages and logs may hold.

#ifndef GRADSYNC_CORE_BASE_UTF8_H_
#define GRADSYNC_CORE_BASE_UTF8_H_

#include <cstddef>
#include <limits>
#include <string>

#include "absl/strings/string_view.h"

namespace gradsync {

// U+FFFD, for bytes that are no character's.
constexpr char kReplacementCharacter[] = "\xef\xbf\xbd";

// How many bytes the character has with which `text`, which is not empty, begins; 0 if they are not
// UTF-8.
size_t CharacterBytes(absl::string_view text);

// `text` as UTF-8 of at most `max_bytes`, which are 3 or more: bytes of no character become U+FFFD
// each, and where not all fits only whole characters of the beginning are there, then "...".
std::string AsUtf8(absl::string_view text, size_t max_bytes);

// `text` as UTF-8 in one line: bytes of no character, and controls such as a newline, become \xNN,
// all else stays, so that two names that differ still differ. Longer than `max_bytes`, which are 3 or
// more, it ends as in AsUtf8().
std::string EscapedAsUtf8(absl::string_view text,
                          size_t max_bytes = std::numeric_limits<size_t>::max());

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_UTF8_H_
