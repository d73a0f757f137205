// SHA-256 over bytes, by OpenSSL's libcrypto.

#ifndef GRADSYNC_BASE_SHA256_H_
#define GRADSYNC_BASE_SHA256_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

struct evp_md_ctx_st;

namespace gradsync {

// Hashes a sequence of byte ranges as if they were one. Not thread-safe; not copyable.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void Update(const void* data, size_t bytes);

  // 64 lower-case hexadecimal digits. Ends the computation: call it once.
  std::string HexDigest();

 private:
  evp_md_ctx_st* context_;  // owned
};

std::string Sha256Hex(absl::string_view data);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_SHA256_H_
