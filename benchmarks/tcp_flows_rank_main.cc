// One rank of an exchange over bare TCP (tcp_flows.h). Started by a benchmark through
// RunLocalJob(), not by people.

#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "base/deadline.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "benchmarks/network/tcp_flows.h"
#include "benchmarks/ranks/clocks.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/machine_load.h"
#include "benchmarks/records/proto_json.h"
#include "proto/run_record.pb.h"

ABSL_FLAG(std::string, flows, "", "from:to:bytes,... of an exchange, by rank");
ABSL_FLAG(int, iterations, 1, "measured exchanges");
ABSL_FLAG(int, warmup, 0, "exchanges before them");

namespace gradsync {
namespace {

absl::Status RunRank() {
  const MeetOptions meet = MeetFromFlags("tcp_flows");
  GS_ASSIGN_OR_RETURN(const std::vector<TcpFlow> flows,
                      ParseTcpFlows(absl::GetFlag(FLAGS_flows), meet.world_size));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<StartLine> line,
                      StartLine::Open(absl::GetFlag(FLAGS_start_line), meet.world_size));
  GS_ASSIGN_OR_RETURN(const Meeting meeting, Meet(meet));
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<TcpFlows> tcp,
                      TcpFlows::Connect(meeting.group(), flows));

  proto::ExchangeMetrics metrics;
  metrics.set_rank(meet.rank);
  metrics.set_link("tcp");
  metrics.set_connections(1);
  metrics.set_wire_tx_bytes_per_step(static_cast<double>(tcp->tx_bytes()));
  metrics.set_wire_rx_bytes_per_step(static_cast<double>(tcp->rx_bytes()));
  const int warmup = absl::GetFlag(FLAGS_warmup);
  for (int i = 0; i < warmup + absl::GetFlag(FLAGS_iterations); ++i) {
    GS_RETURN_IF_ERROR(line->Wait(Deadline::In(meet.timeout)));
    const MachineLoad load;
    const double cpu = CpuSeconds();
    const double begin = MonotonicMicroseconds();
    GS_RETURN_IF_ERROR(tcp->Exchange());
    const double end = MonotonicMicroseconds();
    GS_RETURN_IF_ERROR(line->Wait(Deadline::In(meet.timeout)));
    if (i < warmup) continue;
    metrics.add_begin_us(begin);
    metrics.add_end_us(end);
    metrics.set_cpu_seconds(metrics.cpu_seconds() + CpuSeconds() - cpu);
    metrics.set_busy_core_seconds(metrics.busy_core_seconds() + load.BusyCoreSeconds());
    metrics.set_core_seconds(metrics.core_seconds() + load.CoreSeconds());
  }
  GS_RETURN_IF_ERROR(WriteJson(absl::GetFlag(FLAGS_metrics_json), metrics));
  return line->Wait(Deadline::In(meet.timeout));  // the store goes with rank 0
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::ParseFlagsOrExit(argc, argv, {"tcp_flows_rank: started by benchmarks."});
  return gradsync::RankExitCode("tcp_flows", gradsync::RunRank());
}
