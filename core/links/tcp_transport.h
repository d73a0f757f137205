// How bytes pass through a connected TCP socket: as they are, or through TLS. Private to
// core/links/tcp_stream.

#ifndef GRADSYNC_CORE_LINKS_TCP_TRANSPORT_H_
#define GRADSYNC_CORE_LINKS_TCP_TRANSPORT_H_

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "core/base/credentials.h"

namespace gradsync {

// Does not own the socket, which does not block. One thread may send while another receives.
class TcpTransport {
 public:
  virtual ~TcpTransport() = default;

  // As sendmsg(2) and recvmsg(2): how many bytes, or -1 with errno; EAGAIN when it has to wait, for
  // what WaitsFor() says. What is sent after EAGAIN must begin with the same bytes.
  virtual ssize_t Send(const iovec* pieces, size_t count) = 0;
  virtual ssize_t Receive(iovec* places, size_t count) = 0;

  // For poll(2): POLLIN or POLLOUT, after `events` were waited for by a call that said EAGAIN.
  virtual short WaitsFor(short events) = 0;

  // Whether there is nothing more to receive now when Receive() has given less than it might have.
  virtual bool EmptyWhenShort() const = 0;

  // Why errno was EPROTO; otherwise the text of `error`.
  virtual std::string Why(int error) = 0;
};

std::unique_ptr<TcpTransport> NewPlainTransport(int descriptor);

// TLS 1.2 or newer by OpenSSL, with what a link presents and whom it trusts: as TlsCredentials()
// (core/base/credentials.h). Thread-safe. The handshake happens with the first bytes.
class TlsContext {
 public:
  virtual ~TlsContext() = default;

  // The peer's certificate must be one for `host`, a name or an address.
  virtual std::unique_ptr<TcpTransport> Connecting(int descriptor, const std::string& host) = 0;
  virtual std::unique_ptr<TcpTransport> Accepting(int descriptor) = 0;
};

// Errors: INVALID_ARGUMENT for texts that OpenSSL does not take.
absl::StatusOr<std::shared_ptr<TlsContext>> NewTlsContext(const TlsTexts& texts);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_TRANSPORT_H_
