#ifndef GRADSYNC_CORE_BASE_LOCAL_ADDRESS_H_
#define GRADSYNC_CORE_BASE_LOCAL_ADDRESS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/deadline.h"

namespace gradsync {

struct LocalAddressOptions {
  std::string master;     // host:port of rank 0's store; empty: this process has no peers
  std::string interface;  // "eth0": this process is reached there; empty: where the master leads
  // Whether this process may listen where other hosts reach it (docs/operate/security.md). If not, a name
  // that leads to a loopback address on this host is taken to mean that.
  bool open = true;
  // How long a name that is not found is looked up again: a cluster may publish it late.
  Deadline deadline = Deadline::Now();
  std::function<void(const std::string&)> notice;  // what a user should know meanwhile; may be null
};

struct LocalAddresses {
  // Under which peers reach this process: numeric and ready to be followed by ":port" ("10.0.0.3",
  // "[fd00::3]").
  std::string address;
  std::string store;                // host:port, where peers of this process reach rank 0's store
  std::vector<std::string> listen;  // of rank 0: host:port each, where its store listens
};

// For all processes but rank 0.
//
// With an interface, its first address, IPv4 if it has one. Otherwise the source address of the
// route to the master: the kernel is asked, nothing is sent. On rank 0's host a name may lead to a
// loopback address, which only that host can reach (Debian's /etc/hosts has 127.0.1.1); an open
// process then takes the source address of the default route, or else the first address of an
// interface that is up, bridges of containers last. "localhost" and numeric addresses mean what they
// say; "localhost" and names below it that the system does not know are 127.0.0.1. A link-local address gives another address of its interface, if there is one, since other
// hosts call the interface otherwise.
//
// Blocks until the deadline while the name is not found. Thread-safe.
// Errors: INVALID_ARGUMENT for an interface that does not exist or has no address (names those that
// have), or a master that is neither a name nor an address with a port; DEADLINE_EXCEEDED when the
// name is not found; UNAVAILABLE when no route leads there.
absl::StatusOr<LocalAddresses> FindLocalAddress(const LocalAddressOptions& options);

// For rank 0: it listens wherever the master's name or address leads on this host. Where an open
// process has a name that leads to loopback addresses alone, or that is not found, other hosts may
// know any address of this host by it: the store then listens at all of them. "0.0.0.0" and "[::]"
// mean all addresses too. The interface decides only how peers reach this process. Port 0 is a port of
// LocalAddresses::address alone, since the others are told it.
//
// Does not wait for a name. Thread-safe.
// Errors: INVALID_ARGUMENT as above, and where the master is an address of another host.
absl::StatusOr<LocalAddresses> FindStoreAddresses(const LocalAddressOptions& options);

// For messages: "node0 leads to 127.0.1.1 on this host", "node0 is not found on this host (Name or
// service not known)"; empty for a numeric address. Blocks while the name is looked up.
std::string DescribeHost(absl::string_view host);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_BASE_LOCAL_ADDRESS_H_
