#include "core/base/credentials.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/host_port.h"
#include "core/base/status_macros.h"
#include "grpc/grpc.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace gradsync {
namespace {

using Bio = std::unique_ptr<BIO, decltype(&BIO_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
}

absl::Status Expected(absl::string_view flag, absl::string_view expected, absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": expected ", expected, ", found ", found));
}

// A key that is locked by a passphrase is refused instead of asked for.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<std::vector<Certificate>> ReadCertificates(absl::string_view flag,
                                                          const std::string& text) {
  std::vector<Certificate> certificates;
  const Bio bio = Open(text);
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(next, X509_free);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !at_end) {
    return Expected(flag, "PEM certificates",
                    certificates.empty()
                        ? "none"
                        : absl::StrCat("one that is damaged, behind ", certificates.size()));
  }
  return certificates;
}

absl::Status CheckTime(absl::string_view flag, const X509& certificate) {
  if (X509_cmp_current_time(X509_get0_notAfter(&certificate)) < 0) {
    return Expected(flag, "a certificate that is valid", "one that has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(&certificate)) > 0) {
    return Expected(flag, "a certificate that is valid", "one that is not valid yet");
  }
  return absl::OkStatus();
}

absl::Status CheckTexts(const TlsTexts& texts) {
  if (texts.certificate.empty() != texts.key.empty()) {
    return Expected(texts.key.empty() ? "tls_key" : "tls_cert",
                    "both of --tls_cert and --tls_key, or neither", "nothing");
  }
  if (!texts.issuers.empty()) {
    GS_RETURN_IF_ERROR(ReadCertificates("tls_ca", texts.issuers).status());
  }
  if (texts.certificate.empty()) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(const std::vector<Certificate> chain,
                      ReadCertificates("tls_cert", texts.certificate));
  GS_RETURN_IF_ERROR(CheckTime("tls_cert", *chain[0]));
  const Key key(PEM_read_bio_PrivateKey(Open(texts.key).get(), nullptr, NoPassphrase, nullptr),
                EVP_PKEY_free);
  const bool fits = key != nullptr && X509_check_private_key(chain[0].get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) return Expected("tls_key", "a PEM private key, without a passphrase", "none");
  if (!fits) return Expected("tls_key", "the key of --tls_cert", "another");
  return absl::OkStatus();
}

bool IsLoopback(absl::string_view host) {
  if (host == "localhost") return true;
  in_addr v4 = {};
  in6_addr v6 = {};
  const std::string text(host);
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  // IPv4 written as IPv6, "::ffff:127.0.0.1".
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

// Once, and never given back, so that gRPC does not shut down with the last link of a process: it
// would wait for a thread of its own, which after a write that the network held up sleeps for as
// much as ten seconds.
void KeepGrpc() {
  static const bool kept = (grpc_init(), true);
  (void)kept;
}

}  // namespace

Credentials InsecureCredentials() {
  KeepGrpc();
  Credentials credentials;
  credentials.channel = grpc::InsecureChannelCredentials();
  credentials.server = grpc::InsecureServerCredentials();
  credentials.insecure = true;
  return credentials;
}

absl::StatusOr<Credentials> TlsCredentials(const TlsTexts& texts) {
  GS_RETURN_IF_ERROR(CheckTexts(texts));
  KeepGrpc();
  Credentials credentials;
  credentials.encrypted = true;
  credentials.tls = std::make_shared<const TlsTexts>(texts);
  grpc::SslCredentialsOptions channel;
  channel.pem_root_certs = texts.issuers.empty() ? texts.certificate : texts.issuers;
  channel.pem_private_key = texts.key;
  channel.pem_cert_chain = texts.certificate;
  credentials.channel = grpc::SslCredentials(channel);
  if (texts.certificate.empty()) return credentials;
  grpc::SslServerCredentialsOptions server(
      texts.issuers.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                            : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  server.pem_root_certs = texts.issuers;
  server.pem_key_cert_pairs.push_back({texts.key, texts.certificate});
  credentials.server = grpc::SslServerCredentials(server);
  return credentials;
}

absl::Status CheckListener(const Credentials& credentials, absl::string_view address) {
  if (credentials.server == nullptr) {
    return Expected("tls_cert", absl::StrCat("a certificate, to listen at ", address), "nothing");
  }
  if (credentials.insecure || credentials.encrypted || !credentials.secret.empty()) {
    return absl::OkStatus();
  }
  const absl::StatusOr<HostPort> place = ParseHostPort(address);
  if (place.ok() && IsLoopback(place->host)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--insecure: expected TLS (--tls_cert), a secret (--secret_file, GRADSYNC_JOB_KEY) or this "
      "flag to listen at ",
      place.ok() && place->port == 0 ? place->host : address,
      ", which other hosts may reach, found none of them"));
}

}  // namespace gradsync
