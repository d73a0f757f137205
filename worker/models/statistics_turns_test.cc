#include "worker/models/statistics_turns.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/randn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/layers.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr int kReplicas = 3;
constexpr int kSteps = 4;

// Two layers, one behind the other.
class TwoNorms : public torch::nn::Module {
 public:
  TwoNorms()
      : first_(register_module("first", std::make_shared<BatchNorm2d>(5))),
        second_(register_module("second", std::make_shared<BatchNorm2d>(5))) {}

  at::Tensor forward(const at::Tensor& x) { return second_->forward(first_->forward(x).pow(2)); }

 private:
  const std::shared_ptr<BatchNorm2d> first_, second_;
};

at::Tensor Input(int step, int replica) {
  at::Generator generator = MakeGenerator(100 * step + replica);
  return at::randn({4, 5, 3, 3}, generator);
}

// Without regard to who is ready first: the highest replica is started first.
TEST(StatisticsTurnsTest, StatisticsHaveTheBitsOfOneModelThatSeesThePartsInOrder) {
  TwoNorms serial;
  std::vector<TwoNorms> replicas(kReplicas);
  StatisticsTurns turns;
  ShareStatistics({&replicas[0], &replicas[1], &replicas[2]}, &turns);
  for (int step = 0; step < kSteps; ++step) {
    // The last step has a part less.
    const int active = step + 1 < kSteps ? kReplicas : kReplicas - 1;
    std::vector<at::Tensor> expected, found(active);
    for (int r = 0; r < active; ++r) expected.push_back(serial.forward(Input(step, r)));
    turns.Begin();
    std::vector<std::thread> threads;
    for (int r = active - 1; r >= 0; --r) {
      threads.emplace_back([&, r] { found[r] = replicas[r].forward(Input(step, r)); });
    }
    for (std::thread& thread : threads) thread.join();
    turns.End();
    for (int r = 0; r < active; ++r) EXPECT_TRUE(at::equal(found[r], expected[r]));
  }
  for (const auto& buffer : serial.named_buffers()) {
    EXPECT_TRUE(at::equal(replicas[0].named_buffers()[buffer.key()], buffer.value()))
        << buffer.key();
  }
}

TEST(StatisticsTurnsTest, BetweenStepsAReplicaComputesAlone) {
  TwoNorms replica;
  StatisticsTurns turns;
  ShareStatistics({&replica}, &turns);
  for (int i = 0; i < 2; ++i) replica.forward(Input(0, 0));
  EXPECT_EQ(replica.named_buffers()["first.num_batches_tracked"].item<int64_t>(), 2);
}

TEST(StatisticsTurnsTest, AReplicaThatWillNotComeEndsTheWaitOfTheOthers) {
  StatisticsTurns turns;
  turns.Begin();
  std::string error;
  std::thread waiting([&] {
    try {
      turns.Await(0, 1);
    } catch (const std::exception& e) {
      error = e.what();
    }
  });
  turns.Abandon();
  waiting.join();
  EXPECT_THAT(error, HasSubstr("another replica failed"));
  turns.Begin();
  turns.Await(0, 0);
}

TEST(StatisticsTurnsTest, ALayerThatIsUsedTwiceIsAnErrorAndNoHang) {
  StatisticsTurns turns;
  turns.Begin();
  turns.Await(0, 0);
  turns.Pass(0);
  EXPECT_THROW(turns.Await(0, 0), c10::Error);
}

}  // namespace
}  // namespace gradsync
