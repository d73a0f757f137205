#include "benchmarks/network/tcp_run.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/status_macros.h"
#include "tools/local_job.h"

namespace gradsync {

absl::StatusOr<std::vector<proto::ExchangeMetrics>> RunTcpFlows(const TcpRunOptions& options) {
  if (options.flows.empty()) return absl::InvalidArgumentError("expected flows, found none");
  LocalJobOptions job;
  proto::RankSpec spec;
  proto::RankSpec::TcpFlows& told = *spec.mutable_tcp_flows();
  told.set_iterations(options.iterations);
  told.set_warmup(options.warmup);
  for (const auto& [ends, bytes] : options.flows) {
    job.workers = std::max({job.workers, ends.first + 1, ends.second + 1});
    proto::RankSpec::TcpFlow& flow = *told.add_flows();
    flow.set_from(ends.first);
    flow.set_to(ends.second);
    flow.set_bytes(bytes);
  }
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                      RankFiles::Create(std::move(spec), options.timeout));
  job.worker_binary = options.rank_binary;
  job.worker_flags = {files->flag()};
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
