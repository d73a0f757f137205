#include "benchmarks/peer_libraries/peer_exchange.h"

#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using testing::ElementsAre;
using testing::Pair;

// Measured and warm-up exchanges of each case, on a machine with two cores.
std::vector<std::pair<int, int>> Exchanges(const PeerExchangeOptions& options) {
  const absl::StatusOr<std::vector<PeerCase>> cases = ListPeerCases(options, 2);
  EXPECT_TRUE(cases.ok()) << cases.status();
  std::vector<std::pair<int, int>> exchanges;
  for (const PeerCase& peer_case : *cases) {
    exchanges.emplace_back(peer_case.job.exchange.iterations, peer_case.job.exchange.warmup);
  }
  return exchanges;
}

TEST(PeerExchangeTest, WithoutANumberASmallExchangeIsMeasuredMoreOften) {
  PeerExchangeOptions options;
  options.contestants = {"ring/shm"};
  options.workers = {"2", "4"};
  options.bytes = {"4", "64KiB", "1MiB", "4GiB"};
  EXPECT_THAT(Exchanges(options),
              ElementsAre(Pair(500, 50), Pair(500, 50), Pair(32, 3), Pair(5, 2),  //
                          Pair(50, 5), Pair(50, 5), Pair(32, 3), Pair(5, 2)));
}

TEST(PeerExchangeTest, ANumberThatIsAskedForHoldsForAllSizes) {
  PeerExchangeOptions options;
  options.contestants = {"ring/shm"};
  options.bytes = {"64", "1MiB"};
  options.job.exchange.iterations = 7;
  EXPECT_THAT(Exchanges(options), ElementsAre(Pair(7, 2), Pair(7, 2)));
  options.job.exchange.warmup = 0;
  EXPECT_THAT(Exchanges(options), ElementsAre(Pair(7, 0), Pair(7, 0)));
}

}  // namespace
}  // namespace gradsync
