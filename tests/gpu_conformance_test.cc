// The conformance suite on a real GPU: the real NCCL, ranks that share memory of the GPU, and
// backends of the host over copies. What is
// expected is computed by the host, so equal bits are those of the CPU.
//
// Also the main function, since a rank that is a process (tests/gpu_rank.h) is this program.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/conformance_suite.h"
#include "tests/gpu_rank.h"
#include "tests/gpu_traits.h"
#include "tests/real_gpu.h"

namespace gradsync {
namespace {

// This process as a rank of the suite; null where it runs the tests itself. Set before they are
// registered.
std::shared_ptr<const RankProcess>& SuiteRank() {
  static auto* const rank = new std::shared_ptr<const RankProcess>();
  return *rank;
}

absl::Status HasGpu() { return OpenTestGpu().status(); }

class RealGpus : public GpuSource {
 public:
  absl::StatusOr<std::shared_ptr<GpuApi>> Open() override { return OpenTestGpu(); }
};

std::unique_ptr<GpuSource> NewRealGpus() { return std::make_unique<RealGpus>(); }

class NcclFixture : public BackendFixture {
 public:
  // `owners` as in NcclOptions.
  NcclFixture(UpdateSite site, int owners) : site_(site), owners_(owners) {}
  absl::StatusOr<std::unique_ptr<GradientSync>> Create(const WorkerGroup& group) override {
    return CreateRealNccl(group, site_, owners_);
  }

 private:
  const UpdateSite site_;
  const int owners_;
};

std::vector<ConformanceCase> OnRealGpu(BackendTraits traits) {
  if (SuiteRank() != nullptr) return {};
  traits.available = HasGpu;
  return ConformanceCases(traits);
}

std::vector<ConformanceCase> NcclCases(bool as_processes, int owners) {
  if (as_processes != (SuiteRank() != nullptr)) return {};
  BackendTraits traits;
  traits.make_fixture = [owners](int, UpdateSite site) {
    return std::make_unique<NcclFixture>(site, owners);
  };
  traits.plan_order_beyond_two = owners > 0;
  traits.available = HasGpu;
  traits.process = SuiteRank();
  traits.world_sizes = {as_processes ? kGpuRanks : 1};
  return ConformanceCases(traits);
}

INSTANTIATE_TEST_SUITE_P(Nccl, ConformanceTest, testing::ValuesIn(NcclCases(false, 0)), CaseName);
INSTANTIATE_TEST_SUITE_P(NcclServer, ConformanceTest, testing::ValuesIn(NcclCases(false, 1)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(NcclAsProcesses, ConformanceTest, testing::ValuesIn(NcclCases(true, 0)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(NcclAsProcessesOneServer, ConformanceTest,
                         testing::ValuesIn(NcclCases(true, 1)), CaseName);
INSTANTIATE_TEST_SUITE_P(NcclAsProcessesAllServers, ConformanceTest,
                         testing::ValuesIn(NcclCases(true, kGpuRanks)), CaseName);

// Ranks that share memory of the GPU.
std::vector<ConformanceCase> IpcCases(bool as_processes, const IpcOptions& like) {
  if (as_processes != (SuiteRank() != nullptr)) return {};
  BackendTraits traits = IpcTraits(NewRealGpus, like);
  traits.available = HasGpu;
  traits.process = SuiteRank();
  traits.world_sizes = {as_processes ? kGpuRanks : 1};
  return ConformanceCases(traits);
}

INSTANTIATE_TEST_SUITE_P(Ipc, ConformanceTest, testing::ValuesIn(IpcCases(false, IpcRing())),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(IpcAsProcessesRing, ConformanceTest,
                         testing::ValuesIn(IpcCases(true, IpcRing())), CaseName);
INSTANTIATE_TEST_SUITE_P(IpcAsProcessesServer, ConformanceTest,
                         testing::ValuesIn(IpcCases(true, IpcServers(1))), CaseName);
INSTANTIATE_TEST_SUITE_P(IpcAsProcessesServers, ConformanceTest,
                         testing::ValuesIn(IpcCases(true, IpcServers(0))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedLocal, ConformanceTest,
                         testing::ValuesIn(OnRealGpu(StagedLocal(NewRealGpus))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverGrpc, ConformanceTest,
                         testing::ValuesIn(OnRealGpu(StagedRingOverGrpc(NewRealGpus))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedRingOverShm, ConformanceTest,
                         testing::ValuesIn(OnRealGpu(StagedRingOverShm(NewRealGpus))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverGrpc, ConformanceTest,
                         testing::ValuesIn(OnRealGpu(StagedPs(NewRealGpus, false))), CaseName);
INSTANTIATE_TEST_SUITE_P(StagedPsOverShm, ConformanceTest,
                         testing::ValuesIn(OnRealGpu(StagedPs(NewRealGpus, true))), CaseName);

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  const auto rank = gradsync::ParseGpuRank(argc, argv);
  if (!rank.ok()) {
    std::fprintf(stderr, "%s\n", rank.status().ToString().c_str());
    return 1;
  }
  const std::string task = rank->has_value() ? (*rank)->task : "";
  const bool suite = task == gradsync::kRunSuite || task == gradsync::kRunServersSuite ||
                     task == gradsync::kRunIpcSuite;
  if (rank->has_value() && !suite) {
    return gradsync::RunGpuRank(**rank);
  }
  if (rank->has_value()) {
    gradsync::SuiteRank() = std::make_shared<gradsync::RankProcess>(
        gradsync::RankProcess{(*rank)->group.rank, (*rank)->group.store});
  }
  testing::InitGoogleTest(&argc, argv);
  if (rank->has_value()) {
    testing::GTEST_FLAG(filter) = task == gradsync::kRunIpcSuite ? "IpcAsProcesses*/*"
                                  : task == gradsync::kRunSuite
                                      ? "NcclAsProcesses/*"
                                      : "NcclAsProcessesOneServer/*:NcclAsProcessesAllServers/*";
  }
  return RUN_ALL_TESTS();
}
