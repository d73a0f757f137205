#include "core/program/security_flags.h"

#include <cstddef>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "core/base/errors.h"
#include "core/base/secret_proof.h"
#include "core/base/status_macros.h"
#include "core/program/program_main.h"
#include "core/program/regular_file.h"

ABSL_FLAG(std::string, tls_cert, "",
          "PEM file of this process's certificate: all connections of the job are encrypted "
          "(docs/operate/security.md); empty: they are not");
ABSL_FLAG(std::string, tls_key, "", "PEM file of the private key of --tls_cert");
ABSL_FLAG(std::string, tls_ca, "",
          "PEM file of the issuers whose certificates peers may show; who connects to this process "
          "must show one, too; empty: peers have the same certificate as --tls_cert, and who "
          "connects shows none");
ABSL_FLAG(std::string, secret_file, "",
          "file of a secret, the same for all processes of the job, which whoever connects must "
          "prove to have; empty: the launcher's, if it gave one");
ABSL_FLAG(bool, insecure, false,
          "listen at addresses that other hosts reach even without --tls_cert and --secret_file");

namespace gradsync {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxSecretBytes = 4096;

// Nothing for an empty path.
absl::StatusOr<std::string> ReadSmallFile(absl::string_view flag, const std::string& given) {
  if (given.empty()) return std::string();
  absl::StatusOr<std::string> text = ReadRegularFile(UserPath(given), kMaxFileBytes + 1);
  if (!text.ok()) {
    return FlagError(flag, absl::StrCat("a file that can be read (", text.status().message(), ")"),
                     given);
  }
  if (text->empty() || text->size() > kMaxFileBytes) {
    return FlagError(flag, absl::StrCat("a file of 1 to ", kMaxFileBytes, " bytes"), given);
  }
  return text;
}

absl::StatusOr<std::string> ReadSecret() {
  const std::string path = absl::GetFlag(FLAGS_secret_file);
  GS_ASSIGN_OR_RETURN(std::string secret, ReadSmallFile("secret_file", path));
  while (!secret.empty() && (secret.back() == '\n' || secret.back() == '\r')) secret.pop_back();
  if (!path.empty() && (secret.empty() || secret.size() > kMaxSecretBytes)) {
    return FlagError("secret_file",
                     absl::StrCat("a file with a secret of 1 to ", kMaxSecretBytes, " bytes"),
                     path);
  }
  return secret;
}

}  // namespace

absl::StatusOr<Credentials> CredentialsFromFlags(absl::string_view key) {
  GS_RETURN_IF_ERROR(CheckJobKey(kJobKeyVariable, key));
  Credentials credentials = InsecureCredentials();
  TlsTexts tls;
  GS_ASSIGN_OR_RETURN(tls.certificate, ReadSmallFile("tls_cert", absl::GetFlag(FLAGS_tls_cert)));
  GS_ASSIGN_OR_RETURN(tls.key, ReadSmallFile("tls_key", absl::GetFlag(FLAGS_tls_key)));
  GS_ASSIGN_OR_RETURN(tls.issuers, ReadSmallFile("tls_ca", absl::GetFlag(FLAGS_tls_ca)));
  if (!tls.certificate.empty() || !tls.key.empty() || !tls.issuers.empty()) {
    GS_ASSIGN_OR_RETURN(credentials, TlsCredentials(tls));
  }
  GS_ASSIGN_OR_RETURN(credentials.secret, ReadSecret());
  if (credentials.secret.empty()) credentials.secret = std::string(key);
  credentials.insecure = absl::GetFlag(FLAGS_insecure);
  return credentials;
}

std::vector<std::string> TlsFlagsGiven() {
  std::vector<std::string> flags;
  const auto add = [&flags](absl::string_view name, const std::string& path) {
    if (!path.empty()) flags.push_back(absl::StrCat("--", name, "=", UserPath(path)));
  };
  add("tls_cert", absl::GetFlag(FLAGS_tls_cert));
  add("tls_key", absl::GetFlag(FLAGS_tls_key));
  add("tls_ca", absl::GetFlag(FLAGS_tls_ca));
  return flags;
}

}  // namespace gradsync
