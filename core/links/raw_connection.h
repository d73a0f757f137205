// What tests of listeners on TCP ports need: a client without manners, and a certificate.

#ifndef GRADSYNC_CORE_LINKS_RAW_CONNECTION_H_
#define GRADSYNC_CORE_LINKS_RAW_CONNECTION_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "core/base/credentials.h"

namespace gradsync {

// A TCP client of a listener on this host that says what it likes. Not thread-safe.
class RawConnection {
 public:
  explicit RawConnection(const std::string& address);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  void Say(absl::string_view bytes);

  // What is said until there are so many bytes, or the listener ends the connection. Fails the test
  // after half a minute.
  std::string Hear(size_t bytes);

  // All that is said until the listener ends the connection. Likewise.
  std::string HearAll();

 private:
  // Appends what comes next; false when it is the end.
  bool HearMore(std::string* heard);

  const int descriptor_;
};

// A self-signed certificate for 127.0.0.1 and "localhost", and its key.
TlsTexts NewTlsTexts();

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_RAW_CONNECTION_H_
