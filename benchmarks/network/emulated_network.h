// The network that --bandwidth asks for, made and measured: hosts for the jobs of a sweep, what it
// gives, and its record.
//
//   GS_ASSIGN_OR_RETURN(const auto network, EmulatedNetwork::Create(options));
//   processes.lab = &network->lab();                      // LocalJobOptions
//   processes.hosts = HostsOf(job);                       // placed_job.h

#ifndef GRADSYNC_BENCHMARKS_NETWORK_EMULATED_NETWORK_H_
#define GRADSYNC_BENCHMARKS_NETWORK_EMULATED_NETWORK_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/run_record.pb.h"
#include "tools/network_lab.h"

namespace gradsync {

// Above this share of the machine's cores a measurement says more about them than about the
// emulated network.
constexpr double kMostCpuShare = 0.7;

struct EmulatedNetworkOptions {
  std::string bandwidth;        // of each host's link, each way: "400mbit"
  int hosts = 2;                // of the largest job
  NetworkLabOptions lab;        // without hosts and rate
  std::string tcp_rank_binary;  // path of //benchmarks:tcp_flows_rank
  absl::Duration timeout = absl::Seconds(60);
  const std::atomic<int>* interrupt = nullptr;  // as LocalJobOptions has it
};

// Immutable after creation, hence thread-safe; jobs on it take turns, since they would share links.
class EmulatedNetwork {
 public:
  // Makes the hosts and measures one bare TCP connection with both directions between two of them;
  // blocks for some seconds. Errors: INVALID_ARGUMENT naming --bandwidth; those of
  // NetworkLab::Create() and RunTcpFlows().
  static absl::StatusOr<std::unique_ptr<EmulatedNetwork>> Create(
      const EmulatedNetworkOptions& options);

  const NetworkLab& lab() const { return *lab_; }

  // For RunRecords.networks.
  const proto::Network& record() const { return record_; }

  // Payload that a host's link carries each way: the bandwidth times the measured factor, which
  // stands for the headers of TCP, IP and Ethernet. What the cost model is given.
  double payload_bytes_per_second() const { return payload_bytes_per_second_; }

 private:
  EmulatedNetwork() = default;

  std::unique_ptr<NetworkLab> lab_;
  proto::Network record_;
  double payload_bytes_per_second_ = 0;
};

// "400mbit each way on 6 hosts: bare TCP carries 0.955 of it; reno, bursts of 256KiB, ...".
std::string FormatNetwork(const proto::Network& network);

// Why the figures of a run on an emulated network must not be used, for Run.invalid; "" when they
// may. `cpu_share` is Run.cpu_share.
std::string InvalidByCpu(double cpu_share);

}  // namespace gradsync

#endif  // GRADSYNC_BENCHMARKS_NETWORK_EMULATED_NETWORK_H_
