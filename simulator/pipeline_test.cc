#include "simulator/pipeline.h"

#include <algorithm>
#include <random>
#include <string>

#include "core/plan/pipeline_schedule.h"
#include "core/plan/slice_traffic.h"
#include "core/plan/wire_traffic.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "simulator/simulate.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

// Bytes per second: a transfer of a second is 16 pieces of the network.
constexpr double kRate = 1 << 18;
constexpr PipelineSchedule kFillAndDrain = PipelineSchedule::kGpipe;
constexpr PipelineSchedule kInTurns = PipelineSchedule::kOneForwardOneBackward;

Cluster FreeMessages() {
  Cluster cluster;
  cluster.bytes_per_second = kRate;
  cluster.constants = {1, 0, 0, 0};
  return cluster;
}

Plan PlanOf(int replicas, const std::vector<int64_t>& buckets = {16}) {
  std::vector<TensorSpec> tensors;
  std::vector<std::vector<int>> members;
  for (int64_t numel : buckets) {
    members.push_back({static_cast<int>(tensors.size())});
    tensors.push_back({"t" + std::to_string(tensors.size()), {numel}, {1}, 0});
  }
  OptimizerSpec optimizer;
  optimizer.groups.resize(1);
  return *Plan::FromBuckets(tensors, members, optimizer, replicas, 0);
}

// A stage takes f and b; c is a transfer between two stages. Seconds.
struct Times {
  double f = 1;
  double b = 1;
};

SimulatedPipeline PipelineOf(const std::vector<Times>& stages, double c, PipelineSchedule schedule,
                             int64_t m, int replicas = 1) {
  SimulatedPipeline pipeline;
  pipeline.micro_batches = m;
  pipeline.schedule = schedule;
  const int p = static_cast<int>(stages.size());
  for (int s = 0; s < p; ++s) {
    SimulatedStage stage;
    stage.each.forward = stages[s].f;
    stage.each.backward = stages[s].b;
    stage.each.output_bytes = static_cast<int64_t>(c * kRate);
    stage.last = stage.each;
    stage.plan = PlanOf(replicas);
    stage.bucket_ready = {stage.last.backward};
    pipeline.stages.push_back(stage);
    pipeline.ranks.emplace_back();
    for (int r = 0; r < replicas; ++r) pipeline.ranks.back().push_back(r * p + s);
  }
  return pipeline;
}

double FirstStep(const SimulatedPipeline& pipeline, const Cluster& cluster = FreeMessages()) {
  return SimulatePipeline(pipeline, cluster)->first_step;
}

double FirstStep(const std::vector<Times>& stages, double c, PipelineSchedule schedule, int64_t m) {
  return FirstStep(PipelineOf(stages, c, schedule, m));
}

double Sum(const std::vector<Times>& stages) {
  double sum = 0;
  for (Times stage : stages) sum += stage.f + stage.b;
  return sum;
}

double Largest(const std::vector<Times>& stages, double f, double b) {
  double largest = 0;
  for (Times stage : stages) largest = std::max(largest, f * stage.f + b * stage.b);
  return largest;
}

std::vector<Times> RandomStages(int p, std::mt19937* random) {
  std::uniform_real_distribution<double> time(0.2, 2);
  std::vector<Times> stages(p);
  for (Times& stage : stages) stage = {time(*random), time(*random)};
  return stages;
}

TEST(PipelineTest, EqualStagesOnFreeLinksLoseTheBubble) {
  for (int p : {1, 2, 4}) {
    for (int m = 1; m <= 32; ++m) {
      const std::vector<Times> stages(p, Times{1, 2});
      const double ideal = 3.0 * m;
      for (PipelineSchedule schedule : {kFillAndDrain, kInTurns}) {
        const PipelinePrediction prediction =
            *SimulatePipeline(PipelineOf(stages, 0, schedule, m), FreeMessages());
        EXPECT_NEAR(prediction.first_step, ideal * (m + p - 1) / m, 1e-9) << p << " " << m;
        EXPECT_NEAR(prediction.step, prediction.first_step, 1e-9) << p << " " << m;
        EXPECT_NEAR(prediction.bubble_share, (p - 1.0) / (m + p - 1), 1e-9) << p << " " << m;
      }
      EXPECT_NEAR(FirstStep(stages, 0, PipelineSchedule::kNaive, m), ideal * p, 1e-9);
    }
  }
}

TEST(PipelineTest, FillAndDrainTakesWhatTheClosedFormSays) {
  std::mt19937 random(1);
  for (int p : {2, 4}) {
    for (int m = 1; m <= 32; ++m) {
      const std::vector<Times> stages = RandomStages(p, &random);
      for (double c : {0.0, 0.25, 1.0, 4.0}) {
        const double expected =
            Sum(stages) + 2 * (p - 1) * c +
            (m - 1) * (std::max(Largest(stages, 1, 0), c) + std::max(Largest(stages, 0, 1), c));
        EXPECT_NEAR(FirstStep(stages, c, kFillAndDrain, m), expected, 1e-6) << p << " " << m;
      }
    }
  }
}

// A stage that runs ahead saves some of the ramps or delays some backwards, but no more than if it
// ran all forwards first.
TEST(PipelineTest, InTurnsOnFreeLinksTheSlowestStageDecides) {
  std::mt19937 random(2);
  for (int p : {2, 4}) {
    for (int m = 1; m <= 32; ++m) {
      const std::vector<Times> stages = RandomStages(p, &random);
      const double slowest = Largest(stages, 1, 1);
      const double time = FirstStep(stages, 0, kInTurns, m);
      EXPECT_LE(time, FirstStep(stages, 0, kFillAndDrain, m) + 1e-6) << p << " " << m;
      EXPECT_GE(time, m * slowest - 1e-6) << p << " " << m;
    }
  }
}

// In units of one forward.
TEST(PipelineTest, InTurnsRoundTripsAreHidden) {
  const std::vector<Times> stages(4, Times{1, 2});
  EXPECT_NEAR(FirstStep(stages, 0.5, kInTurns, 32), 108, 1e-6);
  EXPECT_NEAR(FirstStep(stages, 0.5, kFillAndDrain, 32), 108, 1e-6);
  EXPECT_NEAR(FirstStep(stages, 0, kInTurns, 32), 105, 1e-6);
}

// Equal stages, from links that are nearly free to those that decide alone.
TEST(PipelineTest, OnSlowLinksInTurnsIsNoSlowerThanFillAndDrain) {
  for (int p : {2, 3, 4, 6, 8}) {
    const std::vector<Times> stages(p, Times{1, 2});
    for (int64_t m : {2, 4, 8, 16, 32}) {
      for (double c : {0.1, 0.5, 1.0, 3.0, 10.0, 30.0}) {
        EXPECT_LE(FirstStep(stages, c, kInTurns, m), 1.01 * FirstStep(stages, c, kFillAndDrain, m))
            << p << " stages, m = " << m << ", transfer " << c;
      }
    }
  }
}

// But for what messages in both directions hold each other up on an interface that they share.
TEST(PipelineTest, OfUnequalStagesToo) {
  std::mt19937 random(3);
  constexpr int kRounds = 200;
  double worst = 0, mean = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int p = 2 + round % 4;
    const std::vector<Times> stages = RandomStages(p, &random);
    const double c = std::uniform_real_distribution<double>(0.2, 6)(random);
    const int64_t m = std::uniform_int_distribution<int64_t>(1, 32)(random);
    const double in_turns = FirstStep(stages, c, kInTurns, m);
    const double drained = FirstStep(stages, c, kFillAndDrain, m);
    worst = std::max(worst, in_turns / drained);
    mean += in_turns / drained / kRounds;
  }
  EXPECT_LE(worst, 1.015);
  EXPECT_LE(mean, 0.9);
}

// A stage whose parameters are `buckets`, alone: data parallelism.
SimulatedPipeline OneStage(int replicas, const std::vector<int64_t>& buckets,
                           const ComputeTimes& times) {
  SimulatedPipeline pipeline =
      PipelineOf({{times.forward, times.backward}}, 0, kInTurns, 1, replicas);
  SimulatedStage& stage = pipeline.stages[0];
  stage.plan = PlanOf(replicas, buckets);
  stage.bucket_ready.clear();
  for (double ready : times.bucket_ready) stage.bucket_ready.push_back(ready - times.forward);
  stage.update = times.update;
  return pipeline;
}

TEST(PipelineTest, OneStageIsAStepOfDataParallelism) {
  ComputeTimes times;
  times.forward = 0.02;
  times.backward = 0.04;
  times.update = 0.005;
  times.bucket_ready = {0.03, 0.05, 0.06};
  const std::vector<int64_t> buckets = {1 << 20, 3 << 20, 100000};
  Cluster ring = FreeMessages();
  ring.bytes_per_second = 1e9;
  ring.constants = {0.94, 50e-6, 10e-6, 1e-3};
  Cluster dedicated = ring;
  dedicated.ring = false;
  dedicated.servers = 2;
  Cluster colocated = dedicated;
  colocated.placement = Placement::kColocated;
  Cluster owners = dedicated;
  owners.returned = Returned::kParameters;
  for (const Cluster& cluster : {ring, dedicated, colocated, owners}) {
    for (int n : {2, 3}) {
      SimulatedPipeline pipeline = OneStage(n, buckets, times);
      pipeline.steps = 1;
      const PipelinePrediction pipelined = *SimulatePipeline(pipeline, cluster);
      const StepPrediction step =
          *SimulateStep(PlanOf(n, buckets), cluster, times, SimulationMethod::kChunks);
      EXPECT_NEAR(pipelined.first_step, step.step, 1e-9);
      EXPECT_EQ(pipelined.tx_bytes_max_host, step.tx_bytes_max_host);
      EXPECT_EQ(pipelined.rx_bytes_max_host, step.rx_bytes_max_host);
    }
  }
}

// Exchanges are of megabytes.
constexpr double kFast = 1e9;

Cluster FastLinks() {
  Cluster cluster = FreeMessages();
  cluster.bytes_per_second = kFast;
  return cluster;
}

// Two stages of two replicas each, of which the first has many parameters.
SimulatedPipeline TwoByTwo(int64_t numel, double c, int64_t m) {
  SimulatedPipeline pipeline =
      PipelineOf({{0.01, 0.02}, {0.01, 0.02}}, c * kFast / kRate, kInTurns, m, 2);
  pipeline.stages[0].plan = PlanOf(2, {numel});
  pipeline.steps = 1;
  return pipeline;
}

TEST(PipelineTest, HostsSendWhatPassesTheCutAndWhatIsExchanged) {
  constexpr int64_t kNumel = 16 << 20;
  constexpr double kTransfer = 0.005;
  const PipelinePrediction step = *SimulatePipeline(TwoByTwo(kNumel, kTransfer, 5), FastLinks());
  // A ring of two sends M, and five activations pass the cut.
  EXPECT_EQ(step.tx_bytes_max_host, 4.0 * kNumel + 5 * kTransfer * kFast);
  // Nothing hides the first stage's exchange, whose backward is last.
  EXPECT_NEAR(step.stages[0].exposed, 4.0 * kNumel / kFast, 2e-3);
  EXPECT_NEAR(step.first_step, 0.02 * 5 + 0.01 * 5 + 0.03 + 2 * kTransfer + step.stages[0].exposed,
              1e-6);
}

// The second stage's gradients are exchanged while that of its input is on its way, which has one
// connection of five until they are through.
TEST(PipelineTest, TheExchangeSharesTheInterfaceWithWhatPassesTheCut) {
  SimulatedPipeline pipeline = TwoByTwo(16, 0.05, 1);
  const double alone = FirstStep(pipeline, FastLinks());
  pipeline.stages[1].plan = PlanOf(2, {15 << 20});
  EXPECT_NEAR(FirstStep(pipeline, FastLinks()) - alone, 4.0 * (15 << 20) / kFast, 1e-3);
}

TEST(PipelineTest, EachStageHasServersOfItsOwn) {
  Cluster cluster = FastLinks();
  cluster.ring = false;
  cluster.servers = 3;  // two for the first stage
  SimulatedPipeline pipeline = TwoByTwo(16 << 20, 0, 1);
  const double two = SimulatePipeline(pipeline, cluster)->stages[0].exposed;
  cluster.servers = 2;
  const double one = SimulatePipeline(pipeline, cluster)->stages[0].exposed;
  EXPECT_NEAR(two, 64 * 1.048576e6 / kFast, 0.02);
  EXPECT_NEAR(one, 2 * two, 0.02);
  cluster.servers = 1;
  EXPECT_THAT(std::string(SimulatePipeline(pipeline, cluster).status().message()),
              HasSubstr("servers: expected at least 2"));
}

TEST(PipelineTest, TheLastMicroBatchMayBeSmaller) {
  SimulatedPipeline pipeline = PipelineOf({{1, 2}, {1, 2}}, 0.5, PipelineSchedule::kNaive, 3);
  for (SimulatedStage& stage : pipeline.stages) {
    stage.last.forward /= 2;
    stage.last.backward /= 2;
    stage.last.output_bytes /= 2;
    stage.bucket_ready = {stage.last.backward};
  }
  EXPECT_NEAR(FirstStep(pipeline), 2.5 * (6 + 2 * 0.5), 1e-9);
}

TEST(PipelineTest, ASlowRankSlowsItsStage) {
  Cluster cluster = FreeMessages();
  cluster.slowness = {1, 2};
  const SimulatedPipeline pipeline = PipelineOf({{1, 2}, {1, 2}}, 0, kFillAndDrain, 8);
  EXPECT_NEAR(SimulatePipeline(pipeline, cluster)->first_step, 3 + 6 * 8, 1e-9);
}

// So many numbers take a transfer of a second between two hosts.
constexpr int64_t kSecond = (1 << 18) / 4;

// n slices whose passes of a second and two have a meeting each, in their midst.
SimulatedPipeline SlicesOf(int n, SliceMeeting meeting, int64_t m, int replicas = 1) {
  SimulatedPipeline pipeline =
      PipelineOf(std::vector<Times>(n, Times{1, 2}), 0, kInTurns, m, replicas);
  pipeline.slices = true;
  for (SimulatedStage& slice : pipeline.stages) {
    slice.each.forward_meetings = {{0.5, meeting}};
    slice.each.backward_meetings = {{1, meeting}};
    slice.last = slice.each;
  }
  return pipeline;
}

// But for what messages of several slices wait for each other at a receiver.
TEST(PipelineTest, SlicesComputeOrMeet) {
  for (int n : {2, 3, 4, 8}) {
    for (int64_t m : {1, 5}) {
      const double share = (n - 1.0) / n;
      const auto m_seconds = static_cast<double>(m);
      const SliceMeeting sum = {SliceCall::kSum, n * kSecond};
      const SliceMeeting part = {SliceCall::kSumPart, n * kSecond};
      const SliceMeeting gather = {SliceCall::kGather, kSecond};
      const double of_sum = m_seconds * (3 + 2 * 2 * n * share);
      const double of_half = m_seconds * (3 + 2 * n * share);
      const double waits = n == 2 ? 1e-9 : 0.03;
      EXPECT_NEAR(FirstStep(SlicesOf(n, sum, m)) / of_sum, 1, waits) << n;
      EXPECT_NEAR(FirstStep(SlicesOf(n, part, m)) / of_half, 1, waits) << n;
      EXPECT_NEAR(FirstStep(SlicesOf(n, gather, m)) / of_half, 1, waits) << n;
    }
  }
}

TEST(PipelineTest, SlicesSendTheBytesOfTheirMeetingsInEveryStep) {
  const SliceMeeting sum = {SliceCall::kSum, 1001};
  for (int n : {2, 4}) {
    const PipelinePrediction step = *SimulatePipeline(SlicesOf(n, sum, 3), FreeMessages());
    int64_t most = 0;
    for (int slice = 0; slice < n; ++slice) {
      int64_t bytes = 0;
      for (int round = 0; round < SliceRounds(sum.call, n); ++round) {
        for (int to = 0; to < n; ++to) {
          if (to != slice) bytes += 3 * 2 * SliceMessageBytes(sum, n, round, slice, to);
        }
      }
      most = std::max(most, bytes);
    }
    EXPECT_EQ(step.tx_bytes_max_host, most);
    EXPECT_NEAR(step.step / step.first_step, 1, 1e-3);
  }
}

TEST(PipelineTest, ASlowSliceIsWaitedForInEachMeeting) {
  Cluster cluster = FreeMessages();
  cluster.slowness = {1, 2, 1};
  SimulatedPipeline pipeline = SlicesOf(3, {SliceCall::kGather, 0}, 4);
  pipeline.steps = 1;
  const PipelinePrediction step = *SimulatePipeline(pipeline, cluster);
  // The others are done sooner after the last meeting.
  EXPECT_NEAR(step.first_step, 4 * 2 * 3, 1e-9);
  EXPECT_NEAR(step.stages[0].computed, 4 * 3, 1e-9);
  EXPECT_NEAR(step.stages[0].waited, 4 * 3 - 1, 1e-9);
}

// The bucket that is complete before the meeting is exchanged meanwhile.
TEST(PipelineTest, GradientsOfASliceAreExchangedWhileItMeetsOthers) {
  SimulatedPipeline pipeline = SlicesOf(2, {SliceCall::kSum, kSecond}, 1, /*replicas=*/2);
  for (SimulatedStage& slice : pipeline.stages) {
    slice.plan = PlanOf(2, {kSecond, kSecond});
    slice.bucket_ready = {0.5, 2};
  }
  pipeline.steps = 1;
  const PipelinePrediction step = *SimulatePipeline(pipeline, FreeMessages());
  EXPECT_EQ(step.tx_bytes_max_host, 4.0 * kSecond * 4);
  // Forward and its meeting, backward, whose meeting shares the link with the first bucket, and the
  // second bucket alone.
  EXPECT_NEAR(step.stages[0].exposed, 1, 0.1);
  EXPECT_GT(step.first_step, 2 + 2 + 1 + 1);
  EXPECT_LT(step.first_step, 2 + 2 + 1 + 1 + 1);
}

TEST(PipelineTest, MistakesAreNamed) {
  const auto error = [](const SimulatedPipeline& pipeline, const Cluster& cluster) {
    return std::string(SimulatePipeline(pipeline, cluster).status().message());
  };
  const SimulatedPipeline good = PipelineOf({{1, 2}, {1, 2}}, 0, kInTurns, 3);
  SimulatedPipeline bad = good;
  bad.stages[1].each.forward = -1;
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("forward: expected at least 0"));
  bad = good;
  bad.micro_batches = 0;
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("micro-batches: expected at least 1"));
  bad = good;
  bad.ranks[1][0] = 0;
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("ranks: expected each once"));
  bad = good;
  bad.stages[0].bucket_ready = {3};
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("ready times"));
  bad = good;
  bad.stages[0].plan = PlanOf(2);
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("one for 1 workers"));
  bad = good;
  bad.stages[0].each.forward_meetings = {{0.5, {}}};
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("meetings of slices: expected 0, found 1"));
  bad = SlicesOf(2, {SliceCall::kSum, 1}, 3);
  bad.stages[1].each.backward_meetings.clear();
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("meetings of slices: expected 1, found 0"));
  bad = SlicesOf(2, {SliceCall::kSum, 1}, 3);
  bad.stages[0].last.forward_meetings[0].after = 1.5;
  EXPECT_THAT(error(bad, FreeMessages()),
              HasSubstr("a meeting of slices: expected between 0 and 1"));
  bad = good;
  bad.steps = 0;
  EXPECT_THAT(error(bad, FreeMessages()), HasSubstr("steps"));
  EXPECT_THAT(error(SimulatedPipeline(), FreeMessages()), HasSubstr("ranks"));
  EXPECT_THAT(error(good, Cluster()), HasSubstr("cluster: "));
}

}  // namespace
}  // namespace gradsync
