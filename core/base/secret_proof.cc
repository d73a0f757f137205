#include "core/base/secret_proof.h"

#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdint.h>
#include <sys/random.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

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

namespace {

// Proofs may overtake each other by as many.
constexpr uint64_t kWindow = 64;

constexpr size_t kMaxProofBytes = 512;

std::string ProofOf(absl::string_view secret, absl::string_view challenge, uint64_t number) {
  return HmacSha256Hex(secret, absl::StrCat("gradsync proof\n", challenge, "\n", number));
}

absl::Status Refused(absl::string_view why) {
  return absl::UnauthenticatedError(
      absl::StrCat("expected a proof of the job's secret (--secret_file, or ", kJobKeyVariable,
                   "), found ", why));
}

}  // namespace

std::string HmacSha256Hex(absl::string_view secret, absl::string_view text) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
       reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest, &size);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
}

ProofChecker::ProofChecker(std::string secret)
    : secret_(std::move(secret)), own_key_(NewJobKey()) {}

std::string ProofChecker::Sign(absl::string_view challenge) const {
  return HmacSha256Hex(own_key_, challenge);
}

std::string ProofChecker::NewChallenge(MonotonicTime now) {
  const std::string text =
      absl::StrCat(NewJobKey(), ".", absl::ToInt64Microseconds(now.since_origin()));
  return absl::StrCat(text, ".", Sign(text));
}

bool ProofChecker::ReadTime(absl::string_view challenge, MonotonicTime* made) const {
  const size_t dot = challenge.rfind('.');
  if (dot == absl::string_view::npos) return false;
  const absl::string_view text = challenge.substr(0, dot);
  if (!SameSecret(challenge.substr(dot + 1), Sign(text))) return false;
  int64_t microseconds = 0;
  if (!absl::SimpleAtoi(text.substr(text.rfind('.') + 1), &microseconds)) return false;
  *made = MonotonicTime() + absl::Microseconds(microseconds);
  return true;
}

absl::Status ProofChecker::Check(absl::string_view proof, MonotonicTime now) {
  if (!asks()) return absl::OkStatus();
  if (proof.empty()) return Refused("none");
  const std::vector<absl::string_view> parts = absl::StrSplit(proof, ':');
  uint64_t number = 0;
  MonotonicTime made;
  if (proof.size() > kMaxProofBytes || parts.size() != 3 || !absl::SimpleAtoi(parts[1], &number) ||
      number == 0 || absl::StrCat(number) != parts[1] || !ReadTime(parts[0], &made)) {
    return Refused("no answer to a challenge of this process");
  }
  if (!SameSecret(parts[2], ProofOf(secret_, parts[0], number))) return Refused("another secret");
  if (now - made > kLifetime) return Refused("one that is too old");
  MutexLock lock(&mutex_);
  Forget(now);
  Shown& shown = shown_.try_emplace(std::string(parts[0]), Shown{made}).first->second;
  if (number > shown.highest) {
    const uint64_t ahead = number - shown.highest;
    // The bits are those of highest - 1, highest - 2, ...
    shown.below = ahead >= kWindow ? 0 : shown.below << ahead;
    if (shown.highest > 0 && ahead <= kWindow) shown.below |= uint64_t{1} << (ahead - 1);
    shown.highest = number;
    return absl::OkStatus();
  }
  const uint64_t behind = shown.highest - number;
  const uint64_t bit = behind == 0 || behind > kWindow ? 0 : uint64_t{1} << (behind - 1);
  if (bit == 0 || (shown.below & bit) != 0) return Refused("one that was shown before");
  shown.below |= bit;
  return absl::OkStatus();
}

void ProofChecker::Forget(MonotonicTime now) {
  if (now < forget_at_) return;
  forget_at_ = now + kLifetime;
  for (auto it = shown_.begin(); it != shown_.end();) {
    it = now - it->second.made > kLifetime ? shown_.erase(it) : std::next(it);
  }
}

ProofMaker::ProofMaker(std::string secret, std::string challenge)
    : secret_(std::move(secret)), challenge_(std::move(challenge)) {}

std::string ProofMaker::Next() {
  ++count_;
  return absl::StrCat(challenge_, ":", count_, ":", ProofOf(secret_, challenge_, count_));
}

}  // namespace gradsync
