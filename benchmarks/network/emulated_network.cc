#include "benchmarks/network/emulated_network.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/network/tcp_flows.h"
#include "benchmarks/records/aggregate.h"
#include "core/base/status_macros.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr double kProbeSeconds = 1;  // of an exchange at full rate: a burst is little of it

}  // namespace

absl::StatusOr<std::unique_ptr<EmulatedNetwork>> EmulatedNetwork::Create(
    const EmulatedNetworkOptions& options) {
  const absl::StatusOr<double> rate = ParseBandwidth(options.bandwidth);
  if (!rate.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--bandwidth: ", rate.status().message()));
  }
  std::unique_ptr<EmulatedNetwork> network(new EmulatedNetwork);
  NetworkLabOptions lab = options.lab;
  lab.hosts = std::max(2, options.hosts);
  lab.bytes_per_second = *rate;
  GS_ASSIGN_OR_RETURN(network->lab_, NetworkLab::Create(lab));

  TcpRunOptions probe;
  probe.lab = network->lab_.get();
  probe.rank_binary = options.tcp_rank_binary;
  const int64_t bytes = static_cast<int64_t>(kProbeSeconds * *rate);
  probe.flows = {{{0, 1}, bytes}, {{1, 0}, bytes}};
  probe.timeout = options.timeout;
  probe.interrupt = options.interrupt;
  GS_ASSIGN_OR_RETURN(const std::vector<proto::ExchangeMetrics> hosts, RunTcpFlows(probe));
  const double seconds = 1e-6 * Percentile(ExchangeTimes(hosts), 0.5);
  network->payload_bytes_per_second_ = static_cast<double>(bytes) / seconds;

  const NetworkLabOptions& made = network->lab_->options();
  proto::Network& record = network->record_;
  record.set_bandwidth(options.bandwidth);
  record.set_hosts(made.hosts);
  record.set_burst_bytes(static_cast<double>(made.burst_bytes));
  record.set_congestion_control(made.congestion_control);
  record.set_tcp_rmem(made.tcp_rmem);
  record.set_tcp_wmem(made.tcp_wmem);
  record.set_tcp_factor(network->payload_bytes_per_second_ / *rate);
  return network;
}

std::string FormatNetwork(const proto::Network& network) {
  return absl::StrFormat(
      "emulated network: %s each way on each of %d hosts, of which bare TCP carries %.3f; %s, "
      "bursts of %s, tcp_rmem %s, tcp_wmem %s",
      network.bandwidth(), network.hosts(), network.tcp_factor(), network.congestion_control(),
      FormatBytes(static_cast<int64_t>(network.burst_bytes())), network.tcp_rmem(),
      network.tcp_wmem());
}

std::string InvalidByCpu(double cpu_share) {
  if (cpu_share <= kMostCpuShare) return "";
  return absl::StrFormat("%.0f %% of the cores were busy, more than %.0f %%", 100 * cpu_share,
                         100 * kMostCpuShare);
}

}  // namespace gradsync
