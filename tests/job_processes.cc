#include "tests/job_processes.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

constexpr char kWorker[] = "worker/worker";

std::string NewFolder() {
  std::string path = ::testing::TempDir() + "/worker_processes-XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

}  // namespace

std::vector<std::string> With(std::vector<std::string> flags,
                              const std::vector<std::string>& more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

WorkerProcesses::WorkerProcesses(const std::vector<std::vector<std::string>>& flags, int world_size,
                                 const std::vector<std::string>& environment) {
  if (world_size == 0) world_size = static_cast<int>(flags.size());
  const std::string folder = NewFolder();
  const std::string port_file = folder + "/master";
  std::string master = "127.0.0.1:0";
  for (size_t rank = 0; rank < flags.size(); ++rank) {
    std::vector<std::string> argv = {kWorker, absl::StrCat("--world_size=", world_size),
                                     absl::StrCat("--rank=", rank), "--master=" + master};
    if (rank == 0) argv.push_back("--port_file=" + port_file);
    if (rank < environment.size() && !environment[rank].empty()) {
      argv.insert(argv.begin(), {"/usr/bin/env", environment[rank]});
    }
    ranks_.push_back(std::make_unique<TestProgram>(With(argv, flags[rank])));
    if (rank > 0) continue;
    ranks_[0]->Await([&] { return std::filesystem::exists(port_file); });
    std::getline(std::ifstream(port_file), master);
  }
  std::filesystem::remove_all(folder);
}

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
