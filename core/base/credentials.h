// What a link presents to its peers and what it asks of them.
#ifndef GRADSYNC_CORE_BASE_CREDENTIALS_H_
#define GRADSYNC_CORE_BASE_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// Without gRPC's headers: programs that link LibTorch include this one.
namespace grpc {
class ChannelCredentials;
class ServerCredentials;
}  // namespace grpc

namespace gradsync {

// TLS, from the texts of PEM files.
struct TlsTexts {
  std::string certificate;  // of this process, with what leads to its issuer
  std::string key;          // of the certificate
  // Who is trusted to have issued a peer's certificate. With it a listener asks for a certificate
  // and verifies it. Empty: `certificate` itself, and listeners do not ask.
  std::string issuers;
};

// Every part that opens a connection or listens for one takes a Credentials by value; nothing reads
// them from a global or from the environment. Copies share the objects, which are immutable, so
// a Credentials may be used by many threads and may outlive the part that it was given to.
struct Credentials {
  std::shared_ptr<grpc::ChannelCredentials> channel;  // for the side that connects; never null
  // For the side that listens; null: it cannot, because it has no certificate.
  std::shared_ptr<grpc::ServerCredentials> server;
  // What links other than gRPC's encrypt with; null: they do not.
  std::shared_ptr<const TlsTexts> tls;
  // Shared by all processes of a job: who connects proves that it has it
  // (core/base/secret_proof.h). Empty: nobody is asked. Never logged, and never sent.
  std::string secret;
  bool encrypted = false;  // TLS
  // Whether to listen beyond this host's loopback addresses even if neither TLS nor a secret keeps
  // strangers out.
  bool insecure = false;
};

// Neither encrypted nor authenticated: for one machine, or for a network that is trusted.
Credentials InsecureCredentials();

// Who connects always verifies the peer's certificate, and that it is the address's. Without a
// certificate nobody can listen. Errors: INVALID_ARGUMENT, naming --tls_cert, --tls_key or --tls_ca,
// for what cannot be read, is not complete, does not fit together or has expired.
absl::StatusOr<Credentials> TlsCredentials(const TlsTexts& texts);

// Whether a process with these credentials may listen at `address`, "host:port". Nothing is looked
// up, so a name other than "localhost" counts as one that other hosts reach. Errors:
// INVALID_ARGUMENT naming the flag that would help.
absl::Status CheckListener(const Credentials& credentials, absl::string_view address);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_CREDENTIALS_H_
