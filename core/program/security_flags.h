// The flags that say who may connect to a process: docs/operate/security.md. Only for programs.

#ifndef GRADSYNC_CORE_PROGRAM_SECURITY_FLAGS_H_
#define GRADSYNC_CORE_PROGRAM_SECURITY_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/credentials.h"

namespace gradsync {

// What --tls_cert, --tls_key, --tls_ca, --secret_file and --insecure say. `key` is the launcher's
// (secret_proof.h), which is the secret where --secret_file gives none; it may be empty. Errors:
// INVALID_ARGUMENT for a flag, or for a key that is not one; never with the secret.
absl::StatusOr<Credentials> CredentialsFromFlags(absl::string_view key);

// --tls_cert=PATH and the like, as they were given and seen from any folder, for other programs to be
// told. None without TLS.
std::vector<std::string> TlsFlagsGiven();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PROGRAM_SECURITY_FLAGS_H_
