// One rank of an exchange over bare TCP (tcp_flows.h). Started by a benchmark through
// RunLocalJob(), not by people.

#include <functional>
#include <memory>

#include "absl/flags/flag.h"
#include "benchmarks/network/tcp_flows.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/status_macros.h"
#include "core/program/flags.h"
#include "proto/run_record.pb.h"

namespace gradsync {
namespace {

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(const proto::RankSpec spec, SpecFromFlags(proto::RankSpec::kTcpFlows));
  const proto::RankSpec::TcpFlows& told = spec.tcp_flows();
  TcpFlowBytes flows;
  for (const auto& flow : told.flows()) flows[{flow.from(), flow.to()}] = flow.bytes();
  const MeetOptions meet = MeetFromFlags("tcp_flows", spec);
  GS_ASSIGN_OR_RETURN(const std::function<absl::Status()> start, OpenStartLine(spec));
  GS_ASSIGN_OR_RETURN(const Meeting meeting, Meet(meet));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<TcpFlows> tcp,
                      TcpFlows::Connect(meeting.group(), flows));

  proto::ExchangeMetrics metrics;
  metrics.set_rank(meet.rank);
  metrics.set_link("tcp");
  metrics.set_connections(1);
  metrics.set_wire_tx_bytes_per_step(static_cast<double>(tcp->tx_bytes()));
  metrics.set_wire_rx_bytes_per_step(static_cast<double>(tcp->rx_bytes()));
  for (int i = 0; i < told.warmup() + told.iterations(); ++i) {
    GS_RETURN_IF_ERROR(start());
    const MachineLoad load;
    // Reading that takes a rank some 30 us, as in exchange_runner.cc; they must leave together.
    GS_RETURN_IF_ERROR(start());
    const double cpu = CpuSeconds();
    const double begin = MonotonicMicroseconds();
    GS_RETURN_IF_ERROR(tcp->Exchange());
    const double end = MonotonicMicroseconds();
    const double cpu_used = CpuSeconds() - cpu;
    GS_RETURN_IF_ERROR(start());
    if (i < told.warmup()) continue;
    metrics.add_begin_us(begin);
    metrics.add_end_us(end);
    metrics.set_cpu_seconds(metrics.cpu_seconds() + cpu_used);
    metrics.set_busy_core_seconds(metrics.busy_core_seconds() + load.BusyCoreSeconds());
    metrics.set_core_seconds(metrics.core_seconds() + load.CoreSeconds());
  }
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), metrics));
  return start();  // the store goes with rank 0
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::ParseFlagsOrExit(argc, argv, {"tcp_flows_rank: started by benchmarks."});
  return gradsync::RankExitCode("tcp_flows", gradsync::RunRank());
}
