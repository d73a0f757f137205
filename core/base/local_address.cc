#include "core/base/local_address.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/host_port.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr absl::Duration kLookupPause = absl::Milliseconds(500);

// An IPv4 or IPv6 address, an interface's number among it where it is link-local.
struct Address {
  sockaddr_storage storage = {};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  const sockaddr_in* v4() const { return reinterpret_cast<const sockaddr_in*>(&storage); }
  const sockaddr_in6* v6() const { return reinterpret_cast<const sockaddr_in6*>(&storage); }
  bool is_v4() const { return storage.ss_family == AF_INET; }

  bool loopback() const {
    return is_v4() ? (ntohl(v4()->sin_addr.s_addr) >> 24) == 127
                   : IN6_IS_ADDR_LOOPBACK(&v6()->sin6_addr);
  }
  bool link_local() const { return !is_v4() && IN6_IS_ADDR_LINKLOCAL(&v6()->sin6_addr); }
  bool any() const {
    return is_v4() ? v4()->sin_addr.s_addr == INADDR_ANY
                   : IN6_IS_ADDR_UNSPECIFIED(&v6()->sin6_addr);
  }

  // "10.0.0.3", "fd00::3", "fe80::3%eth0".
  std::string Text() const {
    char text[NI_MAXHOST] = "";
    getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
    return text;
  }
  // The same with brackets around IPv6.
  std::string Host() const { return is_v4() ? Text() : absl::StrCat("[", Text(), "]"); }
};

// What is IPv4 written as IPv6, "::ffff:127.0.0.1", is IPv4.
Address FromSockaddr(const sockaddr* from) {
  Address address;
  const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(from);
  if (from->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr)) {
    sockaddr_in v4 = {};
    v4.sin_family = AF_INET;
    v4.sin_port = v6->sin6_port;
    std::memcpy(&v4.sin_addr, &v6->sin6_addr.s6_addr[12], sizeof(v4.sin_addr));
    address.size = sizeof(v4);
    std::memcpy(&address.storage, &v4, sizeof(v4));
    return address;
  }
  address.size = from->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::memcpy(&address.storage, from, address.size);
  return address;
}

// Names that are of this host by standard (RFC 6761), whether or not its files say so.
bool IsLocalhost(absl::string_view host) {
  return absl::EqualsIgnoreCase(host, "localhost") || absl::EndsWithIgnoreCase(host, ".localhost");
}

struct Lookup {
  std::vector<Address> addresses;  // IPv4 first
  std::string failure;             // why there are none
  bool by_standard = false;        // the system's resolver does not know the name
};

Lookup Ask(const std::string& host) {
  Lookup result;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;  // each address once
  addrinfo* list = nullptr;
  // Port 9: Linux connects to port 0 too, but others do not, and the port does not matter.
  const int error = getaddrinfo(host.c_str(), "9", &hints, &list);
  if (error != 0) {
    result.failure = error == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(error);
    return result;
  }
  const auto free_list = absl::MakeCleanup([list] { freeaddrinfo(list); });
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
      if (each->ai_family != family) continue;
      const Address address = FromSockaddr(each->ai_addr);
      // /etc/hosts may have a name twice.
      const auto same = [&address](const Address& other) { return other.Text() == address.Text(); };
      if (std::none_of(result.addresses.begin(), result.addresses.end(), same)) {
        result.addresses.push_back(address);
      }
    }
  }
  if (result.addresses.empty()) result.failure = "it has neither an IPv4 nor an IPv6 address";
  return result;
}

Lookup LookUp(const std::string& host) {
  Lookup lookup = Ask(host);
  if (lookup.addresses.empty() && IsLocalhost(host)) {
    lookup = Ask("127.0.0.1");
    lookup.by_standard = true;
  }
  return lookup;
}

// What is no name, and so need not be looked up again: digits and dots, or colons.
bool LooksNumeric(absl::string_view host) {
  return absl::StrContains(host, ':') ||
         host.find_first_not_of("0123456789.") == absl::string_view::npos;
}

// Not a host's name, which a host's own files may lead to a loopback address.
bool MeansWhatItSays(absl::string_view host) {
  return LooksNumeric(host) || absl::StartsWithIgnoreCase(host, "localhost") || IsLocalhost(host) ||
         absl::EqualsIgnoreCase(host, "ip6-localhost") ||
         absl::EqualsIgnoreCase(host, "ip6-loopback");
}

bool IsOwnName(absl::string_view host) {
  char own[256] = "";
  return gethostname(own, sizeof(own) - 1) == 0 && absl::EqualsIgnoreCase(host, own);
}

struct InterfaceAddress {
  std::string interface;
  Address address;

  // Made for containers and virtual machines of this host, so that other hosts rarely reach it.
  bool internal() const {
    for (const absl::string_view prefix :
         {"docker", "br-", "virbr", "veth", "cni", "podman", "lxc", "lxdbr"}) {
      if (absl::StartsWith(interface, prefix)) return true;
    }
    return false;
  }
};

// Of interfaces that are up, IPv4 first; no link-local ones, which another host cannot be told.
std::vector<InterfaceAddress> InterfaceAddresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  const auto free_list = absl::MakeCleanup([list] { freeifaddrs(list); });
  std::vector<InterfaceAddress> result;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
      if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != family) continue;
      InterfaceAddress found = {each->ifa_name, FromSockaddr(each->ifa_addr)};
      if ((each->ifa_flags & IFF_UP) == 0 || found.address.link_local()) continue;
      result.push_back(std::move(found));
    }
  }
  return result;
}

// "lo (127.0.0.1), eth0 (10.0.0.3)".
std::string DescribeInterfaces() {
  return absl::StrJoin(InterfaceAddresses(), ", ",
                       [](std::string* out, const InterfaceAddress& each) {
                         absl::StrAppend(out, each.interface, " (", each.address.Text(), ")");
                       });
}

absl::optional<Address> AddressOf(absl::string_view interface) {
  for (const InterfaceAddress& each : InterfaceAddresses()) {
    if (each.interface == interface) return each.address;
  }
  return absl::nullopt;
}

absl::StatusOr<std::string> AddressOfInterface(absl::string_view interface) {
  const absl::optional<Address> address = AddressOf(interface);
  if (address.has_value()) return address->Host();
  return absl::InvalidArgumentError(
      absl::StrCat("--interface: expected one that is up and has an address, of ",
                   DescribeInterfaces(), "; found \"", interface, "\""));
}

// The source address that the kernel chooses for packets to `peer`: connecting a datagram socket
// sends none.
absl::StatusOr<Address> RouteTo(const Address& peer) {
  const int fd = socket(peer.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError(std::strerror(errno));
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  Address local;
  local.size = sizeof(local.storage);
  if (connect(fd, peer.get(), peer.size) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&local.storage), &local.size) != 0) {
    return absl::UnavailableError(std::strerror(errno));
  }
  return local;
}

// The address by which this host is most likely known to others.
absl::optional<Address> OutwardAddress() {
  // Addresses far away, for the default route.
  for (const char* far : {"8.8.8.8", "2001:4860:4860::8888"}) {
    const absl::StatusOr<Address> local = RouteTo(LookUp(far).addresses.front());
    if (local.ok() && !local->loopback() && !local->link_local()) return *local;
  }
  std::vector<InterfaceAddress> addresses = InterfaceAddresses();
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const InterfaceAddress& each) { return !each.internal(); });
  for (const InterfaceAddress& each : addresses) {
    if (!each.address.loopback()) return each.address;
  }
  return absl::nullopt;
}

// Where peers reach a process that is on this host under `address`.
std::string AsPeersSee(const Address& address) {
  char interface[IF_NAMESIZE] = "";
  if (!address.link_local() || if_indextoname(address.v6()->sin6_scope_id, interface) == nullptr) {
    return address.Host();
  }
  return AddressOf(interface).value_or(address).Host();
}

// Asks the kernel, as addresses need not be an interface's (all of 127.0.0.0/8).
bool IsOwn(Address address) {
  const int fd = socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  // The port, at the same place in both families.
  reinterpret_cast<sockaddr_in*>(&address.storage)->sin_port = 0;
  return bind(fd, address.get(), address.size) == 0;
}

// The address that other hosts know, or that of the loopback interface.
std::string OutwardOr(bool open, absl::string_view loopback) {
  const absl::optional<Address> outward = open ? OutwardAddress() : absl::nullopt;
  return outward.has_value() ? outward->Host() : std::string(loopback);
}

std::string Texts(const std::vector<Address>& addresses) {
  return absl::StrJoin(addresses, ", ", [](std::string* out, const Address& each) {
    absl::StrAppend(out, each.Text());
  });
}

absl::Status NoSuchHost(const std::string& host, const Lookup& lookup) {
  return absl::InvalidArgumentError(absl::StrCat(
      "--master: expected a host's name or address, found \"", host, "\" (", lookup.failure, ")"));
}

// An address that another link may have too.
absl::Status CheckZones(const std::string& host, const Lookup& lookup) {
  const bool none = std::any_of(
      lookup.addresses.begin(), lookup.addresses.end(),
      [](const Address& each) { return each.link_local() && each.v6()->sin6_scope_id == 0; });
  if (!none) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--master: expected a link-local address with its interface on this host, such as "
      "[fe80::1%eth0]:7001, found \"",
      host, "\""));
}

void Notice(const LocalAddressOptions& options, const std::string& text) {
  if (options.notice) options.notice(text);
}

// A name that is not found is looked up until the deadline, unless it is this host's own.
absl::StatusOr<Lookup> LookUpPatiently(const std::string& host,
                                       const LocalAddressOptions& options) {
  Lookup lookup = LookUp(host);
  if (lookup.addresses.empty() && LooksNumeric(host)) return NoSuchHost(host, lookup);
  if (lookup.addresses.empty() && IsOwnName(host)) return lookup;
  for (bool said = false; lookup.addresses.empty(); lookup = LookUp(host), said = true) {
    if (options.deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("host \"", host, "\" is not found: ", lookup.failure));
    }
    if (!said) {
      Notice(options, absl::StrCat("waiting until the host \"", host,
                                   "\" of --master is found: ", lookup.failure));
    }
    absl::SleepFor(std::min(kLookupPause, options.deadline.remaining()));
  }
  GS_RETURN_IF_ERROR(CheckZones(host, lookup));
  return lookup;
}

absl::StatusOr<std::string> AddressTowards(const std::string& host, const Lookup& lookup,
                                           bool open) {
  absl::Status failure;
  for (const Address& each : lookup.addresses) {
    const absl::StatusOr<Address> local = RouteTo(each);
    if (!local.ok()) {
      failure = local.status();
      continue;
    }
    if (!local->loopback() || MeansWhatItSays(host)) return AsPeersSee(*local);
    return OutwardOr(open, local->Host());
  }
  return absl::UnavailableError(
      absl::StrCat("host \"", host, "\": expected a route to it: ", failure.message()));
}

std::vector<std::string> WithPort(const std::vector<Address>& addresses, int port) {
  std::vector<std::string> places;
  for (const Address& each : addresses) places.push_back(absl::StrCat(each.Host(), ":", port));
  return places;
}

// At all addresses of this host: others may know it by any.
absl::Status ListenEverywhere(const LocalAddressOptions& options, int port,
                              LocalAddresses* result) {
  result->address = OutwardOr(/*open=*/true, "127.0.0.1");
  if (!options.interface.empty()) {
    GS_ASSIGN_OR_RETURN(result->address, AddressOfInterface(options.interface));
  }
  result->listen = {absl::StrCat("[::]:", port)};
  result->store = absl::StrCat(result->address, ":", port);
  return absl::OkStatus();
}

// At `own`, which is not empty.
absl::Status ListenAt(const LocalAddressOptions& options, const std::vector<Address>& own, int port,
                      LocalAddresses* result) {
  const auto routable =
      std::find_if(own.begin(), own.end(), [](const Address& each) { return !each.loopback(); });
  const Address& best = routable == own.end() ? own.front() : *routable;
  result->address = AsPeersSee(best);
  if (!options.interface.empty()) {
    GS_ASSIGN_OR_RETURN(result->address, AddressOfInterface(options.interface));
  }
  result->listen = WithPort(own, port);
  result->store = absl::StrCat(best.Host(), ":", port);
  return absl::OkStatus();
}

absl::Status NotOwn(const std::string& host, int port, const Lookup& lookup) {
  const std::string leads =
      LooksNumeric(host) ? "" : absl::StrCat(", which leads to ", Texts(lookup.addresses));
  return absl::InvalidArgumentError(absl::StrCat(
      "--master: expected a name or an address of this host, as rank 0 listens there, of ",
      DescribeInterfaces(), "; found \"", host, "\"", leads,
      " (--master or MASTER_ADDR names another than a launcher's first host; where another host "
      "forwards it to this one, give rank 0 --master=0.0.0.0:",
      port, ")"));
}

}  // namespace

absl::StatusOr<LocalAddresses> FindLocalAddress(const LocalAddressOptions& options) {
  LocalAddresses result;
  result.address = "127.0.0.1";
  result.store = options.master;
  if (!options.interface.empty()) {
    GS_ASSIGN_OR_RETURN(result.address, AddressOfInterface(options.interface));
  }
  if (options.master.empty()) return result;
  GS_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(options.master));
  GS_ASSIGN_OR_RETURN(const Lookup lookup, LookUpPatiently(target.host, options));
  const bool own = lookup.addresses.empty();
  if (own || lookup.by_standard) result.store = FormatHostPort("127.0.0.1", target.port);
  if (!options.interface.empty()) return result;
  if (own) {
    result.address = OutwardOr(options.open, "127.0.0.1");
  } else {
    GS_ASSIGN_OR_RETURN(result.address, AddressTowards(target.host, lookup, options.open));
  }
  return result;
}

absl::StatusOr<LocalAddresses> FindStoreAddresses(const LocalAddressOptions& options) {
  GS_ASSIGN_OR_RETURN(const HostPort target, ParseHostPort(options.master));
  const Lookup lookup = LookUp(target.host);
  if (lookup.addresses.empty() && LooksNumeric(target.host)) return NoSuchHost(target.host, lookup);
  GS_RETURN_IF_ERROR(CheckZones(target.host, lookup));
  std::vector<Address> own;
  std::copy_if(lookup.addresses.begin(), lookup.addresses.end(), std::back_inserter(own), IsOwn);
  const bool only_loopback =
      std::all_of(own.begin(), own.end(), [](const Address& each) { return each.loopback(); });
  LocalAddresses result;
  if (!own.empty() && own.front().any()) {
    GS_RETURN_IF_ERROR(ListenEverywhere(options, target.port, &result));
    return result;
  }
  if (!lookup.addresses.empty() && own.empty()) return NotOwn(target.host, target.port, lookup);
  if (options.open && only_loopback && !MeansWhatItSays(target.host)) {
    if (own.empty()) {
      Notice(options,
             absl::StrCat("the host \"", target.host, "\" of --master is not found (",
                          lookup.failure, "): rank 0 listens at all addresses of this host"));
    }
    GS_RETURN_IF_ERROR(ListenEverywhere(options, target.port, &result));
  } else if (own.empty()) {
    // What a name that is not found leads to is known only if it is this host's.
    const bool own_name = IsOwnName(target.host);
    if (!own_name) {
      Notice(options, absl::StrCat("the host \"", target.host, "\" of --master is not found (",
                                   lookup.failure, ")"));
    }
    result.address = own_name ? "127.0.0.1" : target.host;
    result.store = FormatHostPort(result.address, target.port);
    result.listen = {result.store};
  } else {
    if (only_loopback && !MeansWhatItSays(target.host)) {
      Notice(options,
             absl::StrCat("\"", target.host, "\" of --master leads to ", Texts(own),
                          ", so that rank 0 listens for processes of this host alone; for other "
                          "hosts give all processes --secret_file, --tls_cert or --insecure"));
    }
    GS_RETURN_IF_ERROR(ListenAt(options, own, target.port, &result));
  }
  if (target.port == 0) result.listen = {result.store};
  return result;
}

std::string DescribeHost(absl::string_view host) {
  if (LooksNumeric(host)) return "";
  const Lookup lookup = LookUp(std::string(host));
  return lookup.addresses.empty()
             ? absl::StrCat(host, " is not found on this host (", lookup.failure, ")")
             : absl::StrCat(host, " leads to ", Texts(lookup.addresses), " on this host");
}

}  // namespace gradsync
