#ifndef GRADSYNC_BASE_LOCAL_ADDRESS_H_
#define GRADSYNC_BASE_LOCAL_ADDRESS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gradsync {

// The address under which this host's peers reach it, numeric and ready to be followed by ":port"
// ("10.0.0.3", "[fd00::3]").
//
// With `interface` ("eth0"), that interface's first address, IPv4 if it has one. Otherwise the
// source address of the route to `peer`, "host:port": the kernel is asked, nothing is sent. A name
// that this host calls itself by often leads to a loopback address that only this host can reach
// (Debian's /etc/hosts has 127.0.1.1); then the first address of any interface that is up is taken
// instead, if there is one. "localhost" and numeric addresses mean what they say. An empty `peer`
// gives "127.0.0.1".
//
// Blocks while the name is looked up. Thread-safe.
// Errors: INVALID_ARGUMENT for an interface that does not exist or has no address (names those that
// have), or a `peer` that is no "host:port"; UNAVAILABLE when the name is not found or no route
// leads there.
absl::StatusOr<std::string> LocalAddress(absl::string_view peer, absl::string_view interface);

}  // namespace gradsync

#endif  // GRADSYNC_BASE_LOCAL_ADDRESS_H_
