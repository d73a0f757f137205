#include "base/job_key.h"

#include <algorithm>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

std::string NewJobKey() {
  std::random_device device("/dev/urandom");
  std::string key;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&key, absl::Hex(device(), absl::kZeroPad8));
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
