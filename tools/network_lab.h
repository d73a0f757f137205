// Hosts on an emulated network, on this machine: network namespaces, each joined to one switch by
// a link whose rate is capped in both directions.
//
//   host 0  eth0 ======== port0                    an arrow's end is where tc's token bucket sits:
//   host 1  eth0 ======== port1   switch (bridge)    eth0 -> ...  what the host sends
//   host 2  eth0 ======== port2                      port0 -> ... what the host receives
//
// Nothing has a name in the system: hosts end with this object and the processes inside them, also
// when the program is killed. Without root's rights everything is in a user namespace.

#ifndef GRADSYNC_TOOLS_NETWORK_LAB_H_
#define GRADSYNC_TOOLS_NETWORK_LAB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/namespaces.h"

namespace gradsync {

// The settings are those with which bare TCP keeps closest to the rate; docs/compare/netlab.md has the
// measurements.
struct NetworkLabOptions {
  int hosts = 2;                // 1 to 250
  double bytes_per_second = 0;  // of a host's link, each way, headers included; 0: no cap
  // Of a token bucket: what may leave at once after a pause. A process that the scheduler lets wait
  // loses no rate until this much has piled up, and what is exchanged looks shorter by so much: it
  // should be at most 1 % of it. 0: DefaultBurstBytes().
  int64_t burst_bytes = 0;
  // In front of a token bucket. Longer than what sockets send without an answer, so that nothing is
  // lost: senders are held back by receivers' windows.
  int64_t queue_bytes = 64 << 20;
  std::string congestion_control = "reno";      // other namespaces may only have unrestricted ones
  std::string tcp_rmem = "4096 131072 131072";  // minimum, default, maximum, bytes
  std::string tcp_wmem = "4096 131072 131072";
};

// What the link carries in 5 ms, but at least 64 KiB, since a bucket must hold a segment as TCP hands
// it over, and at most 256 KiB. The latter without a cap, too.
int64_t DefaultBurstBytes(double bytes_per_second);

// Immutable after creation, hence thread-safe.
class NetworkLab {
 public:
  // Makes the hosts, by calls of ip and tc (iproute2). Blocks for some 10 ms per host.
  // Errors: INVALID_ARGUMENT naming an option out of its range; NOT_FOUND when ip or tc is missing
  // and PERMISSION_DENIED when namespaces are, both with the way to get them; otherwise what ip, tc
  // or the kernel said.
  static absl::StatusOr<std::unique_ptr<NetworkLab>> Create(const NetworkLabOptions& options);

  NetworkLab(const NetworkLab&) = delete;
  NetworkLab& operator=(const NetworkLab&) = delete;

  // As it was made: burst_bytes is not 0.
  const NetworkLabOptions& options() const { return options_; }

  // Numeric; every host reaches it, and nobody else does. 0 <= host < options().hosts.
  std::string address(int host) const;

  // To start a process there: SubprocessOptions::inside. Open as long as this object lives.
  Namespaces inside(int host) const { return namespaces_.at(host); }

 private:
  NetworkLab(const NetworkLabOptions& options, NetworkNamespaces namespaces)
      : options_(options), namespaces_(std::move(namespaces)) {}

  Namespaces inside_switch() const { return namespaces_.at(options_.hosts); }
  absl::Status SetUp() const;
  absl::Status SetUpHost(int host) const;
  absl::Status Cap(const Namespaces& where, const std::string& interface) const;

  const NetworkLabOptions options_;
  const NetworkNamespaces namespaces_;  // of the hosts, then of the switch
};

}  // namespace gradsync

#endif  // GRADSYNC_TOOLS_NETWORK_LAB_H_
