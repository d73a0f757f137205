#ifndef GRADSYNC_CORE_BASE_HOST_PORT_H_
#define GRADSYNC_CORE_BASE_HOST_PORT_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;      // 0..65535; 0 means any, where one listens
};

// Reads "host:port", "1.2.3.4:port" or "[1::2]:port". Nothing is looked up.
// Errors: INVALID_ARGUMENT, with what was expected and found.
absl::StatusOr<HostPort> ParseHostPort(absl::string_view text);

// The opposite, with brackets around a host that has colons.
std::string FormatHostPort(absl::string_view host, int port);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_HOST_PORT_H_
