#include "core/links/tcp_transport.h"

#include <arpa/inet.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

class PlainTransport : public TcpTransport {
 public:
  explicit PlainTransport(int descriptor) : descriptor_(descriptor) {}

  ssize_t Send(const iovec* pieces, size_t count) override {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(pieces);
    message.msg_iovlen = count;
    return sendmsg(descriptor_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  }

  ssize_t Receive(iovec* places, size_t count) override {
    msghdr message = {};
    message.msg_iov = places;
    message.msg_iovlen = count;
    return recvmsg(descriptor_, &message, MSG_DONTWAIT);
  }

  short WaitsFor(short events) override { return events; }
  bool EmptyWhenShort() const override { return true; }
  std::string Why(int error) override { return std::strerror(error); }

 private:
  const int descriptor_;
};

// OpenSSL's own sockets raise SIGPIPE when the peer is gone.
int WriteToSocket(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const auto descriptor = static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
  const ssize_t sent =
      send(descriptor, bytes, static_cast<size_t>(size), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadFromSocket(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const auto descriptor = static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio)));
  const ssize_t received = recv(descriptor, bytes, static_cast<size_t>(size), MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(received);
}

long ControlSocket(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

BIO* NewSocketBio(int descriptor) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
    BIO_meth_set_write(made, WriteToSocket);
    BIO_meth_set_read(made, ReadFromSocket);
    BIO_meth_set_ctrl(made, ControlSocket);
    return made;
  }();
  BIO* const bio = BIO_new(method);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)));
  BIO_set_init(bio, 1);
  return bio;
}

class TlsTransport : public TcpTransport {
 public:
  TlsTransport(SSL_CTX* context, int descriptor) : ssl_(SSL_new(context)) {
    BIO* const bio = NewSocketBio(descriptor);
    SSL_set_bio(ssl_, bio, bio);
  }
  ~TlsTransport() override { SSL_free(ssl_); }

  SSL* ssl() { return ssl_; }

  ssize_t Send(const iovec* pieces, size_t count) override {
    MutexLock lock(&mutex_);
    partly_gathered_ = false;
    size_t sent = 0;
    for (size_t i = 0; i < count; ++i) {
      const char* bytes = static_cast<const char*>(pieces[i].iov_base);
      size_t size = pieces[i].iov_len;
      // What is small goes with what follows it into one of TLS's records.
      if (size < kRecordBytes && i + 1 < count) {
        size = Gather(pieces, count, &i);
        bytes = gathered_;
      }
      while (size > 0) {
        size_t written = 0;
        ERR_clear_error();
        const int result = SSL_write_ex(ssl_, bytes, std::min(size, kRecordBytes), &written);
        if (result <= 0) return sent > 0 ? static_cast<ssize_t>(sent) : Failed(result);
        sent += written;
        bytes += written;
        size -= written;
      }
      // The rest of a piece of which a part was gathered begins the next call.
      if (partly_gathered_) return static_cast<ssize_t>(sent);
    }
    return static_cast<ssize_t>(sent);
  }

  ssize_t Receive(iovec* places, size_t count) override {
    MutexLock lock(&mutex_);
    size_t received = 0;
    for (size_t i = 0; i < count; ++i) {
      char* bytes = static_cast<char*>(places[i].iov_base);
      size_t room = places[i].iov_len;
      while (room > 0) {
        size_t read = 0;
        ERR_clear_error();
        const int result = SSL_read_ex(ssl_, bytes, room, &read);
        if (result <= 0) {
          if (received > 0) return static_cast<ssize_t>(received);
          if (SSL_get_error(ssl_, result) == SSL_ERROR_ZERO_RETURN) return 0;
          return Failed(result);
        }
        received += read;
        bytes += read;
        room -= read;
      }
    }
    return static_cast<ssize_t>(received);
  }

  short WaitsFor(short events) override {
    MutexLock lock(&mutex_);
    if (SSL_want_read(ssl_)) return POLLIN;
    return SSL_want_write(ssl_) ? POLLOUT : events;
  }

  bool EmptyWhenShort() const override { return false; }

  std::string Why(int error) override {
    MutexLock lock(&mutex_);
    return error == EPROTO ? "TLS: " + why_ : std::strerror(error);
  }

 private:
  static constexpr size_t kRecordBytes = 16 << 10;  // of TLS, at most

  // Copies from piece *i on what fits into a record; *i becomes the last piece it touched.
  size_t Gather(const iovec* pieces, size_t count, size_t* i)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    size_t size = 0;
    for (size_t at = *i; at < count && size < kRecordBytes; ++at) {
      const size_t part = std::min(pieces[at].iov_len, kRecordBytes - size);
      std::memcpy(gathered_ + size, pieces[at].iov_base, part);
      size += part;
      partly_gathered_ = part < pieces[at].iov_len;
      *i = at;
    }
    return size;
  }

  ssize_t Failed(int result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    switch (SSL_get_error(ssl_, result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
      case SSL_ERROR_SYSCALL:
        if (errno == 0) errno = ECONNRESET;  // it was ended without a word
        return -1;
      default:
        break;
    }
    const long verified = SSL_get_verify_result(ssl_);
    const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
    why_ = verified != X509_V_OK ? X509_verify_cert_error_string(verified)
           : reason != nullptr   ? reason
                                 : "the peer does not speak it";
    ERR_clear_error();
    errno = EPROTO;
    return -1;
  }

  Mutex mutex_;
  SSL* const ssl_;
  char gathered_[kRecordBytes] ABSL_GUARDED_BY(mutex_);
  bool partly_gathered_ ABSL_GUARDED_BY(mutex_) = false;
  std::string why_ ABSL_GUARDED_BY(mutex_);
};

using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

class OpenSslContext : public TlsContext {
 public:
  OpenSslContext(Context connecting, Context accepting)
      : connecting_(std::move(connecting)), accepting_(std::move(accepting)) {}

  std::unique_ptr<TcpTransport> Connecting(int descriptor, const std::string& host) override {
    auto transport = std::make_unique<TlsTransport>(connecting_.get(), descriptor);
    SSL* const ssl = transport->ssl();
    unsigned char address[sizeof(in6_addr)];
    if (inet_pton(AF_INET, host.c_str(), address) == 1 ||
        inet_pton(AF_INET6, host.c_str(), address) == 1) {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    } else {
      SSL_set_tlsext_host_name(ssl, host.c_str());
      SSL_set1_host(ssl, host.c_str());
    }
    SSL_set_connect_state(ssl);
    return transport;
  }

  std::unique_ptr<TcpTransport> Accepting(int descriptor) override {
    auto transport = std::make_unique<TlsTransport>(accepting_.get(), descriptor);
    SSL_set_accept_state(transport->ssl());
    return transport;
  }

 private:
  const Context connecting_;
  const Context accepting_;
};

absl::Status Refused(absl::string_view what) {
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  ERR_clear_error();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", reason != nullptr ? reason : "OpenSSL does not take it"));
}

// All certificates of the text, in order.
bool ForEachCertificate(const std::string& text, const std::function<bool(int, X509*)>& use) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free);
  int count = 0;
  bool good = true;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    good = good && use(count++, next);
    X509_free(next);
  }
  ERR_clear_error();
  return good && count > 0;
}

absl::StatusOr<Context> NewContext(const TlsTexts& texts, const SSL_METHOD* method) {
  Context context(SSL_CTX_new(method), SSL_CTX_free);
  if (context == nullptr) return Refused("TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_mode(context.get(),
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (!texts.certificate.empty()) {
    const bool certified = ForEachCertificate(texts.certificate, [&](int i, X509* certificate) {
      return i == 0 ? SSL_CTX_use_certificate(context.get(), certificate) == 1
                    : SSL_CTX_add1_chain_cert(context.get(), certificate) == 1;
    });
    if (!certified) return Refused("--tls_cert");
    const std::unique_ptr<BIO, decltype(&BIO_free)> bio(
        BIO_new_mem_buf(texts.key.data(), static_cast<int>(texts.key.size())), BIO_free);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
        PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
    if (key == nullptr || SSL_CTX_use_PrivateKey(context.get(), key.get()) != 1) {
      return Refused("--tls_key");
    }
  }
  const std::string& trusted = texts.issuers.empty() ? texts.certificate : texts.issuers;
  X509_STORE* const store = SSL_CTX_get_cert_store(context.get());
  // A certificate that is trusted itself need not be an issuer's.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  if (trusted.empty()) SSL_CTX_set_default_verify_paths(context.get());
  if (!trusted.empty() && !ForEachCertificate(trusted, [&](int, X509* certificate) {
        return X509_STORE_add_cert(store, certificate) == 1;
      })) {
    return Refused("--tls_ca");
  }
  return context;
}

}  // namespace

std::unique_ptr<TcpTransport> NewPlainTransport(int descriptor) {
  return std::make_unique<PlainTransport>(descriptor);
}

absl::StatusOr<std::shared_ptr<TlsContext>> NewTlsContext(const TlsTexts& texts) {
  GS_ASSIGN_OR_RETURN(Context connecting, NewContext(texts, TLS_client_method()));
  SSL_CTX_set_verify(connecting.get(), SSL_VERIFY_PEER, nullptr);
  GS_ASSIGN_OR_RETURN(Context accepting, NewContext(texts, TLS_server_method()));
  SSL_CTX_set_verify(
      accepting.get(),
      texts.issuers.empty() ? SSL_VERIFY_NONE : SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT,
      nullptr);
  return std::make_shared<OpenSslContext>(std::move(connecting), std::move(accepting));
}

}  // namespace gradsync
