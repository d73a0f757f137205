// SHA-256 over bytes, by OpenSSL's libcrypto.

#ifndef GRADSYNC_CORE_BASE_SHA256_H_
#define GRADSYNC_CORE_BASE_SHA256_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"

struct SHA256state_st;

namespace gradsync {

// Hashes a sequence of byte ranges as if they were one. Not thread-safe; not copyable.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(const void* data, size_t bytes);

  // What was hashed so far, for another process of the same build to go on with: whoever has not
  // got all bytes can hash what it has.
  std::string state() const;

  // Goes on from another's state(), forgetting what was hashed here. False, and nothing changed, for
  // bytes of another length.
  bool Restore(absl::string_view state);

  // 64 lower-case hexadecimal digits. Ends the computation: call it once.
  std::string HexDigest();

 private:
  const std::unique_ptr<SHA256state_st> context_;
};

std::string Sha256Hex(absl::string_view data);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_SHA256_H_
