#include "tests/job_metrics.h"

#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "tests/worker_processes.h"

namespace gradsync {

LocalJobOptions SmallJob(int workers, int servers, const std::vector<std::string>& flags) {
  LocalJobOptions options;
  options.worker_binary = "worker/worker";
  options.server_binary = "ps_server/ps_server";
  options.workers = workers;
  options.servers = servers;
  options.worker_flags = With({"--model=mlp", "--batch_size=4", "--timeout=60s"}, flags);
  options.collect_metrics = true;
  return options;
}

std::vector<proto::WorkerMetrics> MetricsOf(const LocalJobOptions& options) {
  std::vector<proto::WorkerMetrics> all;
  const auto result = RunLocalJob(options);
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return all;
  EXPECT_EQ(result->exit_code, 0) << DescribeFailure(*result);
  for (const std::string& text : result->worker_metrics) {
    all.emplace_back();
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(text, &all.back()).ok()) << text;
  }
  return all;
}

}  // namespace gradsync
