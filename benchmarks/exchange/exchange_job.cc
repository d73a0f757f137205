#include "benchmarks/exchange/exchange_job.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/network/tcp_flows.h"
#include "benchmarks/ranks/processes.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"
#include "gradsync/join/nccl_settings.h"

namespace gradsync {
namespace {

constexpr int kMostTcpIterations = 5;  // they hardly differ

// `hosts[p]` is that of process p.
TcpFlowBytes FlowsBetweenHosts(const std::vector<Flow>& flows, const std::vector<int>& hosts) {
  TcpFlowBytes bytes;
  for (const Flow& flow : flows) {
    const std::pair<int, int> ends = {hosts[flow.from], hosts[flow.to]};
    if (ends.first != ends.second) bytes[ends] += flow.bytes;
  }
  return bytes;
}

constexpr size_t kColumns = 13;
constexpr size_t kInPlace = 9;  // the first column of it

// "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809".
void ParseVersions(absl::string_view line, proto::Run* run) {
  if (!absl::StrContains(line, "nccl-tests version ")) return;
  absl::string_view before;
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    int version = 0;
    if (before == "version") run->set_settings(absl::StrCat("nccl-tests ", word));
    if (absl::ConsumePrefix(&word, "nccl-library=") && absl::SimpleAtoi(word, &version)) {
      run->set_nccl_version(NcclVersionName(version));
    }
    before = word;
  }
}

// As many bytes as were exchanged, by one process with a GPU per rank (it would need MPI for more):
// fp32 sums, verified, each iteration waited for like ours.
std::vector<std::string> Command(const std::string& program, const SyncBenchCase& bench_case,
                                 double bytes) {
  const std::string flags = absl::StrFormat(
      "-b %.0f -e %.0f -g %d -n %d -w %d -d float -o sum -c 1 -z 1", bytes, bytes,
      bench_case.exchange.world_size, bench_case.exchange.iterations, bench_case.exchange.warmup);
  std::vector<std::string> command = absl::StrSplit(flags, ' ');
  command.insert(command.begin(), program);
  return command;
}

}  // namespace

namespace {

absl::StatusOr<proto::Run> RunWithFlags(const ExchangeJobOptions& options,
                                        const std::vector<std::string>& flags,
                                        const SyncBenchCase& asked_for) {
  SyncBenchCase bench_case = asked_for;
  if (options.network != nullptr) {
    bench_case.bytes_per_second = options.network->payload_bytes_per_second();
  }
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                      RankFiles::Create(RankSpecOf(bench_case), bench_case.exchange.timeout));
  LocalJobOptions processes = ProcessesOf(bench_case.job, options, bench_case.exchange.timeout);
  processes.worker_flags = {files->flag()};
  processes.worker_flags.insert(processes.worker_flags.end(), flags.begin(), flags.end());
  processes.server_flags.insert(processes.server_flags.end(), flags.begin(), flags.end());
  processes.tell_local_rank = bench_case.device != "cpu";
  GS_ASSIGN_OR_RETURN(
      const MeasuredJob<proto::ExchangeMetrics> measured,
      RunMeasuredJob<proto::ExchangeMetrics>(bench_case.job, options, std::move(processes)));
  GS_ASSIGN_OR_RETURN(proto::Run run,
                      SummarizeExchanges(bench_case, measured.ranks, measured.servers));
  run.set_nccl_chosen(measured.nccl_chosen);
  return run;
}

}  // namespace

absl::StatusOr<proto::Run> RunExchangeJob(const ExchangeJobOptions& options,
                                          const SyncBenchCase& bench_case) {
  return RunWithFlags(options, {}, bench_case);
}

absl::StatusOr<proto::Run> RunTlsBeside(const ExchangeJobOptions& options,
                                        const SyncBenchCase& bench_case,
                                        const proto::Run& measured) {
  GS_ASSIGN_OR_RETURN(proto::Run run, RunWithFlags(options, options.tls_flags, bench_case));
  run.set_link(run.link() == LinkName(Link::kGrpc) ? "tls" : absl::StrCat(run.link(), "_tls"));
  AddPeerRatio(measured, &run);
  return run;
}

absl::StatusOr<proto::Run> BareTcp::MeasureBeside(const SyncBenchCase& bench_case,
                                                  proto::Run* measured) {
  GS_ASSIGN_OR_RETURN(const std::vector<Flow> flows, ExchangeFlows(bench_case));
  TcpRunOptions tcp;
  tcp.flows = FlowsBetweenHosts(flows, HostsOf(bench_case.job));
  if (tcp.flows.empty()) return absl::NotFoundError("nothing crosses any link");
  std::vector<proto::ExchangeMetrics>& hosts = known_[{bench_case.job.bandwidth, tcp.flows}];
  if (hosts.empty()) {
    tcp.lab = &options_.network->lab();
    tcp.rank_binary = options_.tcp_rank_binary;
    tcp.iterations = std::min(kMostTcpIterations, bench_case.exchange.iterations);
    tcp.timeout = bench_case.exchange.timeout;
    tcp.interrupt = options_.interrupt;
    GS_ASSIGN_OR_RETURN(hosts, RunTcpFlows(tcp));
  }
  proto::Run run;
  run.set_library("tcp_stream");
  run.set_link("tcp");
  run.set_topology(measured->topology());
  run.set_update(measured->update());
  run.set_compression(measured->compression());
  SetPlaced(JobOf(*measured), &run);
  run.set_bytes(measured->bytes());
  run.set_connections(1);
  SetTimes(hosts, &run);
  run.set_wire_tx_bytes_max_node(measured->wire_tx_bytes_max_node());
  run.set_wire_rx_bytes_max_node(measured->wire_rx_bytes_max_node());
  run.set_wire_tx_bytes_total(measured->wire_tx_bytes_total());
  run.set_model_us(measured->model_us());
  AddPeerRatio(run, measured);
  return run;
}

absl::StatusOr<proto::Run> ParseNcclTests(absl::string_view output) {
  proto::Run run;
  run.set_settings("nccl-tests");
  absl::optional<std::string> row;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    ParseVersions(line, &run);
    // Libraries may print what they like besides.
    if (line.empty() || line[0] < '0' || line[0] > '9') continue;
    if (row.has_value()) {
      return absl::DataLossError(
          absl::StrCat("all_reduce_perf: expected one line of results, found another: ", line));
    }
    row = std::string(line);
  }
  if (!row.has_value()) return absl::DataLossError("all_reduce_perf: found no line of results");
  const std::vector<std::string> words = absl::StrSplit(*row, ' ', absl::SkipEmpty());
  double bytes = 0, time_us = 0, algbw = 0, busbw = 0, wrong = 0;
  if (words.size() < kColumns || words[2] != "float" || words[3] != "sum" ||
      !absl::SimpleAtod(words[0], &bytes) || !absl::SimpleAtod(words[kInPlace], &time_us) ||
      !(time_us > 0) || !absl::SimpleAtod(words[kInPlace + 1], &algbw) ||
      !absl::SimpleAtod(words[kInPlace + 2], &busbw) ||
      !absl::SimpleAtod(words[kInPlace + 3], &wrong)) {
    return absl::DataLossError(absl::StrCat(
        "all_reduce_perf: expected size, count, float, sum, root and twice time, algbw, busbw and "
        "wrong elements, found \"",
        *row, "\""));
  }
  run.set_bytes(bytes);
  run.set_bucket_bytes(bytes);
  run.set_time_us_p50(time_us);
  run.set_algbw_gb_per_s(algbw);
  run.mutable_busbw_gb_per_s()->set_number_value(busbw);
  run.set_wrong(wrong);
  return run;
}

bool ComparesWithNcclTests(const SyncBenchCase& bench_case) {
  const JobSpec& spec = bench_case.job.spec;
  return spec.topology == Topology::kRing && spec.link == Link::kNccl &&
         spec.update == UpdateSite::kWorker && bench_case.device == "cuda";
}

absl::StatusOr<proto::Run> MeasureNcclTests(const std::string& program,
                                            const SyncBenchCase& bench_case,
                                            const std::atomic<int>* interrupt,
                                            proto::Run* measured) {
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        "nccl-tests: not installed; tools/setup --cuda --peers builds its all_reduce_perf");
  }
  std::string output;
  const absl::Status ran = RunProgram(Command(program, bench_case, measured->bytes()),
                                      bench_case.exchange.timeout, &output, interrupt);
  if (absl::IsCancelled(ran)) return ran;
  const absl::StatusOr<proto::Run> parsed = ParseNcclTests(output);
  // It fails, too, where it has found wrong elements and said how many.
  if (!ran.ok() && (!parsed.ok() || parsed->wrong() == 0)) {
    return absl::Status(ran.code(), absl::StrCat("nccl-tests: ", ran.message()));
  }
  GS_ASSIGN_OR_RETURN(proto::Run run, parsed);
  run.set_library("nccl_tests");
  run.set_topology(measured->topology());
  run.set_link(LinkName(Link::kNccl));
  run.set_update(UpdateSiteName(UpdateSite::kWorker));
  run.set_compression(CodecName(Codec()));
  run.set_workers(measured->workers());
  run.set_steps(bench_case.exchange.iterations);
  run.set_device(measured->device());
  run.set_nccl_asked(measured->nccl_asked());
  run.set_nccl_chosen("unknown");
  run.set_settings(
      absl::StrCat(run.settings(), ", one process, in place, one operation, mean time"));
  AddPeerRatio(run, measured);
  return run;
}

}  // namespace gradsync
