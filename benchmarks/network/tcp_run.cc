#include "benchmarks/network/tcp_run.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "benchmarks/ranks/start_line.h"
#include "benchmarks/records/proto_json.h"
#include "tools/local_job.h"

namespace gradsync {

absl::StatusOr<std::vector<proto::ExchangeMetrics>> RunTcpFlows(const TcpRunOptions& options) {
  LocalJobOptions job;
  for (const TcpFlow& flow : options.flows)
    job.workers = std::max({job.workers, flow.from + 1, flow.to + 1});
  if (options.flows.empty()) return absl::InvalidArgumentError("expected flows, found none");
  GS_ASSIGN_OR_RETURN(const std::string start_line, NewStartLineFile());
  const auto remove = absl::MakeCleanup([&start_line] { unlink(start_line.c_str()); });
  job.worker_binary = options.rank_binary;
  job.worker_flags = {absl::StrCat("--flows=", FormatTcpFlows(options.flows)),
                      absl::StrCat("--iterations=", options.iterations),
                      absl::StrCat("--warmup=", options.warmup),
                      absl::StrCat("--timeout=", absl::FormatDuration(options.timeout)),
                      absl::StrCat("--start_line=", start_line)};
  job.lab = options.lab;
  job.hosts.resize(job.workers);
  std::iota(job.hosts.begin(), job.hosts.end(), 0);
  job.collect_metrics = true;
  job.start_timeout = options.timeout;
  job.interrupt = options.interrupt;
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJobOrFail(job));
  std::vector<proto::ExchangeMetrics> ranks;
  GS_RETURN_IF_ERROR(ParseMetrics(result.worker_metrics, "host", &ranks));
  return ranks;
}

std::vector<double> ExchangeTimes(const std::vector<proto::ExchangeMetrics>& ranks) {
  std::vector<double> times;
  for (int i = 0; i < ranks[0].begin_us_size(); ++i) {
    double begin = ranks[0].begin_us(i);
    double end = ranks[0].end_us(i);
    for (const proto::ExchangeMetrics& rank : ranks) {
      begin = std::min(begin, rank.begin_us(i));
      end = std::max(end, rank.end_us(i));
    }
    times.push_back(end - begin);
  }
  return times;
}

}  // namespace gradsync
