#include "tools/network_lab.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "tools/subprocess.h"

namespace gradsync {
namespace {

constexpr int kMostHosts = 250;

// Where Debian has them, also for users without sbin in their PATH.
absl::StatusOr<std::string> FindTool(const std::string& name) {
  for (const char* folder : {"/usr/sbin/", "/sbin/", "/usr/bin/", "/bin/"}) {
    const std::string path = folder + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat("expected the program ", name,
                                          " of iproute2, found none; run tools/setup, or apt-get "
                                          "install iproute2"));
}

// Runs `command`, the words of an ip or tc command line, inside.
absl::Status Call(const Namespaces& where, const std::string& command,
                  const std::vector<int>& keep = {}) {
  std::vector<std::string> argv = absl::StrSplit(command, ' ');
  GS_ASSIGN_OR_RETURN(argv[0], FindTool(argv[0]));
  std::vector<std::string> lines;
  SubprocessOptions options;
  options.inside = where;
  options.keep = keep;
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Subprocess> process,
                      Subprocess::Start(
                          argv,
                          [&lines](absl::string_view line, bool is_stderr) {
                            if (is_stderr) lines.push_back(std::string(line));
                          },
                          options));
  while (true) {
    process->Poll();
    if (process->exit_status().has_value()) break;
    pollfd fds[] = {{process->stdout_fd(), POLLIN, 0}, {process->stderr_fd(), POLLIN, 0}};
    poll(fds, 2, /*timeout=*/1);
  }
  if (process->exit_status()->ok()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("\"", command, "\": ", absl::StrJoin(lines, "; "),
                                             " [", process->exit_status()->ToString(), "]"));
}

absl::Status Check(const NetworkLabOptions& options) {
  if (options.hosts < 1 || options.hosts > kMostHosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("hosts: expected 1 to ", kMostHosts, ", found ", options.hosts));
  }
  if (!(options.bytes_per_second >= 0) || !std::isfinite(options.bytes_per_second)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rate: expected bytes per second, or 0, found ", options.bytes_per_second));
  }
  constexpr int64_t kSmallestBurst = 16 << 10;
  if (options.burst_bytes != 0 && options.burst_bytes < kSmallestBurst) {
    return absl::InvalidArgumentError(absl::StrCat("burst: expected at least ", kSmallestBurst,
                                                   " bytes, found ", options.burst_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t DefaultBurstBytes(double bytes_per_second) {
  constexpr double kSeconds = 0.005;
  constexpr double kLeast = 64 << 10;
  constexpr double kMost = 256 << 10;
  const double bytes = bytes_per_second == 0 ? kMost : kSeconds * bytes_per_second;
  return static_cast<int64_t>(std::clamp(bytes, kLeast, kMost));
}

absl::StatusOr<std::unique_ptr<NetworkLab>> NetworkLab::Create(const NetworkLabOptions& options) {
  GS_RETURN_IF_ERROR(Check(options));
  GS_RETURN_IF_ERROR(FindTool("ip").status());
  GS_RETURN_IF_ERROR(FindTool("tc").status());
  GS_ASSIGN_OR_RETURN(NetworkNamespaces namespaces, NetworkNamespaces::Create(options.hosts + 1));
  NetworkLabOptions made = options;
  if (made.burst_bytes == 0) made.burst_bytes = DefaultBurstBytes(options.bytes_per_second);
  std::unique_ptr<NetworkLab> lab(new NetworkLab(made, std::move(namespaces)));
  GS_RETURN_IF_ERROR(lab->SetUp());
  return lab;
}

std::string NetworkLab::address(int host) const { return absl::StrCat("10.77.0.", host + 1); }

absl::Status NetworkLab::SetUp() const {
  GS_RETURN_IF_ERROR(Call(inside_switch(), "ip link add switch type bridge"));
  GS_RETURN_IF_ERROR(Call(inside_switch(), "ip link set switch up"));
  for (int host = 0; host < options_.hosts; ++host) GS_RETURN_IF_ERROR(SetUpHost(host));
  return absl::OkStatus();
}

absl::Status NetworkLab::SetUpHost(int host) const {
  const std::string port = absl::StrCat("port", host);
  const int network = inside(host).network;
  GS_RETURN_IF_ERROR(Call(
      inside_switch(),
      absl::StrCat("ip link add ", port, " type veth peer name eth0 netns /proc/self/fd/", network),
      {network}));
  GS_RETURN_IF_ERROR(Cap(inside_switch(), port));
  GS_RETURN_IF_ERROR(
      Call(inside_switch(), absl::StrCat("ip link set ", port, " master switch up")));
  const std::pair<absl::string_view, absl::string_view> settings[] = {
      {"ipv4/tcp_congestion_control", options_.congestion_control},
      {"ipv4/tcp_rmem", options_.tcp_rmem},
      {"ipv4/tcp_wmem", options_.tcp_wmem}};
  for (const auto& [path, text] : settings) {
    GS_RETURN_IF_ERROR(WriteSysctlInside(inside(host), path, text));
  }
  GS_RETURN_IF_ERROR(Call(inside(host), "ip link set lo up"));
  GS_RETURN_IF_ERROR(
      Call(inside(host), absl::StrCat("ip address add ", address(host), "/16 dev eth0")));
  GS_RETURN_IF_ERROR(Cap(inside(host), "eth0"));
  return Call(inside(host), "ip link set eth0 up");
}

absl::Status NetworkLab::Cap(const Namespaces& where, const std::string& interface) const {
  if (options_.bytes_per_second == 0) return absl::OkStatus();
  return Call(where, absl::StrCat("tc qdisc add dev ", interface, " root tbf rate ",
                                  static_cast<int64_t>(8 * options_.bytes_per_second), "bit burst ",
                                  options_.burst_bytes, "b limit ", options_.queue_bytes, "b"));
}

}  // namespace gradsync
