#include "tests/worker_processes.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
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

}  // namespace gradsync
