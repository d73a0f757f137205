// OpenSSL 3 would rather hide the state of a hash, which state() needs.
#define OPENSSL_SUPPRESS_DEPRECATED

#include "core/base/sha256.h"

#include <openssl/sha.h>

#include <cstring>

#include "absl/strings/escaping.h"

namespace gradsync {

Sha256::Sha256() : context_(new SHA256_CTX) { SHA256_Init(context_.get()); }

Sha256::~Sha256() = default;

void Sha256::Update(const void* data, size_t bytes) { SHA256_Update(context_.get(), data, bytes); }

std::string Sha256::state() const {
  return std::string(reinterpret_cast<const char*>(context_.get()), sizeof(SHA256_CTX));
}

bool Sha256::Restore(absl::string_view state) {
  if (state.size() != sizeof(SHA256_CTX)) return false;
  std::memcpy(context_.get(), state.data(), state.size());
  return true;
}

std::string Sha256::HexDigest() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_Final(digest, context_.get());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), sizeof(digest)));
}

std::string Sha256Hex(absl::string_view data) {
  Sha256 hash;
  hash.Update(data.data(), data.size());
  return hash.HexDigest();
}

}  // namespace gradsync
