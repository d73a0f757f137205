#include "base/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_port.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

// Numeric, with brackets around IPv6; empty for other families.
std::string Format(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
  }
  if (address->sa_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
    return absl::StrCat("[", inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text)), "]");
  }
  return "";
}

bool IsLoopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

// Reaches one link only, and not without the link's name.
bool IsLinkLocal(const sockaddr* address) {
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

struct InterfaceAddress {
  std::string interface;
  std::string address;
  bool v4 = false;
  bool loopback = false;
};

// Of interfaces that are up, IPv4 first.
std::vector<InterfaceAddress> InterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const auto free_list = absl::MakeCleanup([list] { freeifaddrs(list); });
  std::vector<InterfaceAddress> result;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      if ((each->ifa_flags & IFF_UP) == 0 || IsLinkLocal(each->ifa_addr)) continue;
      result.push_back(
          {each->ifa_name, Format(each->ifa_addr), family == AF_INET, IsLoopback(each->ifa_addr)});
    }
  }
  return result;
}

absl::StatusOr<std::string> AddressOfInterface(absl::string_view interface) {
  std::vector<std::string> known;
  for (const InterfaceAddress& each : InterfaceAddresses()) {
    if (each.interface == interface) return each.address;
    known.push_back(absl::StrCat(each.interface, " (", each.address, ")"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("network interface: expected one that is up and has an address, of ",
                   absl::StrJoin(known, ", "), "; found \"", interface, "\""));
}

// The source address that the kernel chooses for packets to `peer`: connecting a datagram socket
// sends none.
absl::StatusOr<sockaddr_storage> RouteTo(const addrinfo& peer) {
  const int fd = socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  if (connect(fd, peer.ai_addr, peer.ai_addrlen) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return local;
}

bool IsNumeric(const std::string& host) {
  unsigned char buffer[sizeof(in6_addr)];
  return inet_pton(AF_INET, host.c_str(), buffer) == 1 ||
         inet_pton(AF_INET6, host.c_str(), buffer) == 1;
}

}  // namespace

absl::StatusOr<std::string> LocalAddress(absl::string_view peer, absl::string_view interface) {
  if (!interface.empty()) return AddressOfInterface(interface);
  if (peer.empty()) return "127.0.0.1";
  GS_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(peer));

  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  // Port 9: Linux connects to port 0 too, but others do not, and the port does not matter.
  const int error = getaddrinfo(target.host.c_str(), "9", &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("host \"", target.host,
                     "\": expected a name or address that can be found: ", gai_strerror(error)));
  }
  const auto free_list = absl::MakeCleanup([list] { freeaddrinfo(list); });
  absl::Status failure;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
      if (each->ai_family != family) continue;
      const absl::StatusOr<sockaddr_storage> local = RouteTo(*each);
      if (!local.ok()) {
        failure = local.status();
        continue;
      }
      const auto* address = reinterpret_cast<const sockaddr*>(&*local);
      if (IsLoopback(address) && !IsNumeric(target.host) &&
          !absl::EqualsIgnoreCase(target.host, "localhost")) {
        for (const InterfaceAddress& other : InterfaceAddresses()) {
          if (!other.loopback) return other.address;
        }
      }
      return Format(address);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("host \"", target.host, "\": expected a route to it: ", failure.message()));
}

}  // namespace gradsync
