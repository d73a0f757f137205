#include "core/base/host_port.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text) {
  const absl::Status error = absl::InvalidArgumentError(
      absl::StrCat("expected an address host:port or [host]:port with a port in 0..65535, found \"",
                   text, "\""));
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return error;
  absl::string_view host = text.substr(0, colon);
  const absl::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of(bracketed ? "[]/, " : "[]:/, ") != host.npos) return error;
  HostPort result;
  result.host = std::string(host);
  // SimpleAtoi would take a sign and spaces.
  if (port.empty() || port.find_first_not_of("0123456789") != port.npos ||
      !absl::SimpleAtoi(port, &result.port) || result.port > 65535) {
    return error;
  }
  return result;
}

std::string FormatHostPort(absl::string_view host, int port) {
  const bool colons = host.find(':') != host.npos;
  return absl::StrCat(colons ? "[" : "", host, colons ? "]:" : ":", port);
}

}  // namespace gradsync
