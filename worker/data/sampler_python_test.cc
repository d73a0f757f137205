// Compares with Debian's python3-torch, run by this test. Skipped where it is missing.

#include <sys/wait.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/data/sampler.h"

namespace gradsync {
namespace {

constexpr int kSkip = 77;

std::vector<SamplerOptions> Cases() {
  std::vector<SamplerOptions> cases;
  for (const int64_t size : {1, 2, 7, 100, 625, 1000}) {
    for (const int n : {1, 2, 3, 16}) {
      for (const bool drop_last : {false, true}) {
        if (drop_last && size < n) continue;  // PyTorch's samplers are empty, ours are refused
        for (const int rank : {0, n / 2, n - 1}) {
          SamplerOptions options;
          options.dataset_size = size;
          options.world_size = n;
          options.rank = rank;
          options.drop_last = drop_last;
          options.seed = static_cast<uint64_t>(size * 31 + n);
          options.order = SampleOrder::kPytorch;
          cases.push_back(options);
        }
      }
    }
  }
  // Long enough for several generations of the Mersenne Twister; a seed beyond 32 bits.
  SamplerOptions large;
  large.dataset_size = 50000;
  large.world_size = 8;
  large.rank = 5;
  large.seed = (uint64_t{5} << 32) + 4294967295u;
  large.order = SampleOrder::kPytorch;
  cases.push_back(large);
  return cases;
}

TEST(SamplerPythonTest, OrderIsThatOfPytorchsDistributedSampler) {
  const std::string questions = ::testing::TempDir() + "/questions";
  const std::string answers = ::testing::TempDir() + "/answers";
  std::ofstream asked(questions);
  for (const SamplerOptions& o : Cases()) {
    for (const int64_t epoch : {0, 1, 9}) {
      asked << o.dataset_size << " " << o.world_size << " " << o.rank << " " << o.seed << " "
            << epoch << " " << o.drop_last << "\n";
    }
  }
  asked.close();
  const int status =
      std::system(absl::StrCat("/usr/bin/python3 worker/data/testdata/sampler_order.py <",
                               questions, " >", answers)
                      .c_str());
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (code == kSkip || code == 126 || code == 127) {
    GTEST_SKIP() << "needs python3-torch (tools/setup --extras)";
  }
  ASSERT_EQ(code, 0);
  std::ifstream said(answers);
  for (const SamplerOptions& o : Cases()) {
    const RankSampler sampler = RankSampler::Create(o).value();
    for (const int64_t epoch : {0, 1, 9}) {
      std::string line;
      ASSERT_TRUE(std::getline(said, line));
      std::istringstream words(line);
      std::vector<int64_t> expected;
      for (int64_t index; words >> index;) expected.push_back(index);
      EXPECT_EQ(sampler.Indices(epoch), expected)
          << o.dataset_size << " over " << o.world_size << ", rank " << o.rank << ", epoch "
          << epoch << (o.drop_last ? ", drop_last" : "");
    }
  }
}

}  // namespace
}  // namespace gradsync
