#include "core/base/job_key.h"

#include <errno.h>
#include <stdint.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

std::string NewJobKey() {
  uint32_t words[4];
  // Not a file, since a process that has no file descriptors left is asked for challenges too.
  while (getrandom(words, sizeof(words), 0) != sizeof(words)) {
    if (errno != EINTR) std::abort();
  }
  std::string key;
  for (uint32_t word : words) absl::StrAppend(&key, absl::Hex(word, absl::kZeroPad8));
  return key;
}

absl::Status CheckJobKey(absl::string_view what, absl::string_view key) {
  const bool good = key.size() <= 128 && std::all_of(key.begin(), key.end(), [](char c) {
                      return absl::ascii_isalnum(c) || c == '-' || c == '_';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": expected at most 128 letters, digits, \"-\" and \"_\", found ",
                   key.size(), " characters, others among them or too many"));
}

bool SameSecret(absl::string_view a, absl::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace gradsync
