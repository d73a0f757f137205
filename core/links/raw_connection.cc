#include "core/links/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gtest/gtest.h"

namespace gradsync {

RawConnection::RawConnection(const std::string& address)
    : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in place = {};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  place.sin_port = htons(static_cast<uint16_t>(port));
  EXPECT_EQ(connect(descriptor_, reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
}

RawConnection::~RawConnection() { close(descriptor_); }

void RawConnection::Say(absl::string_view bytes) {
  EXPECT_EQ(send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

bool RawConnection::HearMore(std::string* heard) {
  char bytes[4096];
  pollfd readable = {descriptor_, POLLIN, 0};
  const Deadline deadline = Deadline::In(absl::Seconds(30));
  if (poll(&readable, 1, deadline.PollTimeout()) <= 0) {
    ADD_FAILURE() << "nothing came for half a minute";
    return false;
  }
  const ssize_t received = recv(descriptor_, bytes, sizeof(bytes), 0);
  if (received > 0) heard->append(bytes, static_cast<size_t>(received));
  return received > 0;
}

std::string RawConnection::Hear(size_t bytes) {
  std::string heard;
  while (heard.size() < bytes && HearMore(&heard)) {
  }
  return heard;
}

std::string RawConnection::HearAll() {
  std::string heard;
  while (HearMore(&heard)) {
  }
  return heard;
}

TlsTexts NewTlsTexts() {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* const name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* const names =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1,DNS:localhost");
  X509_add_ext(certificate, names, -1);
  X509_sign(certificate, key, EVP_sha256());
  const auto text = [](auto write) {
    BIO* const bio = BIO_new(BIO_s_mem());
    write(bio);
    char* bytes = nullptr;
    const long size = BIO_get_mem_data(bio, &bytes);
    std::string result(bytes, static_cast<size_t>(size));
    BIO_free(bio);
    return result;
  };
  TlsTexts texts;
  texts.certificate = text([&](BIO* bio) { PEM_write_bio_X509(bio, certificate); });
  texts.key = text(
      [&](BIO* bio) { PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr); });
  X509_EXTENSION_free(names);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return texts;
}

}  // namespace gradsync
