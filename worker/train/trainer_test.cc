#include "worker/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/base/activity.h"
#include "core/base/cpu_for_test.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "core/sync/local_sync.h"
#include "core/sync/staged_sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

TrainerOptions Options() {
  TrainerOptions options;
  options.model.name = "mlp";
  options.batch_size = 8;
  options.steps = 8;
  options.synchronised = false;
  options.optimizer.groups.emplace_back();
  return options;
}

// With options.gpu, in its memory.
std::unique_ptr<GradientSync> NewSync(const TrainerOptions& options) {
  std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  if (options.gpu == nullptr) return sync;
  return CreateStagedSync(std::move(sync), options.gpu);
}

std::vector<StepReport> Train(const TrainerOptions& options) {
  std::vector<StepReport> reports;
  auto trainer = Trainer::Create(options, 0, 1);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  SideChannel side_channel(WorkerGroup(), "trainer");
  EXPECT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
  const auto result = (*trainer)->Run([&](const StepReport& r) { reports.push_back(r); });
  EXPECT_TRUE(result.ok()) << result.status();
  return reports;
}

absl::Duration Shortest(const std::vector<StepReport>& reports,
                        absl::Duration (*part)(const StepReport&)) {
  absl::Duration shortest = absl::InfiniteDuration();
  for (const StepReport& report : reports) shortest = std::min(shortest, part(report));
  return shortest;
}

absl::Duration Computation(const StepReport& r) { return r.times.forward + r.times.backward; }
// After the forward pass.
absl::Duration FirstGradient(const StepReport& r) {
  return *std::min_element(r.gradient_ready.begin(), r.gradient_ready.end()) - r.times.forward;
}
absl::Duration Update(const StepReport& r) { return r.times.update; }

TEST(TrainerTest, GradientsAreTimedWhenAskedFor) {
  TrainerOptions options = Options();
  EXPECT_TRUE(Train(options)[0].gradient_ready.empty());
  options.record_gradients = true;
  for (const StepReport& report : Train(options)) {
    ASSERT_EQ(report.gradient_ready.size(), 4u);
    for (absl::Duration ready : report.gradient_ready) {
      EXPECT_GE(ready, report.times.forward);
      EXPECT_LE(ready, Computation(report));
    }
  }
}

// The shortest of several steps says what computation takes, whatever else the machine does.
TEST(TrainerTest, AStragglerComputesLongerAndItsFirstGradientsAreLateToo) {
  TrainerOptions options = Options();
  options.record_gradients = true;
  const std::vector<StepReport> usual = Train(options);
  options.straggler = Straggler::Parse("0:30").value();
  const std::vector<StepReport> slow = Train(options);
  for (auto part : {Computation, FirstGradient, Update}) {
    EXPECT_GT(Shortest(slow, part), 8 * Shortest(usual, part));
  }
  // Training is the same.
  for (size_t i = 0; i < usual.size(); ++i) EXPECT_EQ(slow[i].loss, usual[i].loss);
}

TEST(TrainerTest, AccuraciesAreThoseOfTheModelAsItWasThen) {
  TrainerOptions options = Options();
  options.evaluate_every = 3;
  std::vector<int64_t> heard;
  options.on_evaluation = [&](const EvaluationPoint& point) { heard.push_back(point.step); };
  const auto run = [](const TrainerOptions& options) {
    auto trainer = Trainer::Create(options, 0, 1);
    const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
    SideChannel side_channel(WorkerGroup(), "trainer");
    EXPECT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
    return *(*trainer)->Run([](const StepReport&) {});
  };
  const TrainingResult result = run(options);
  ASSERT_EQ(result.evaluations.size(), 2u);
  EXPECT_EQ(heard, (std::vector<int64_t>{3, 6}));
  ASSERT_EQ(result.step_ends.size(), 8u);
  for (size_t i = 0; i < 2; ++i) {
    TrainerOptions shorter = Options();
    shorter.steps = 3 * (i + 1);
    shorter.evaluate = true;
    EXPECT_EQ(result.evaluations[i].step, shorter.steps);
    EXPECT_EQ(result.evaluations[i].time, result.step_ends[shorter.steps - 1]);
    EXPECT_EQ(result.evaluations[i].tested.judged().accuracy, run(shorter).test_accuracy);
  }
  // And the result is that of all steps.
  EXPECT_EQ(result.params_sha256, run(Options()).params_sha256);
  // The same where models are kept and evaluated at the end, by any number of threads.
  options.one_pace = false;
  options.loader_threads = 3;
  const TrainingResult kept = run(options);
  ASSERT_EQ(kept.evaluations.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(kept.evaluations[i].tested.weights.loss, result.evaluations[i].tested.weights.loss);
    EXPECT_GT(kept.evaluations[i].time, absl::ZeroDuration());
  }
  EXPECT_EQ(kept.params_sha256, result.params_sha256);
}

TEST(TrainerTest, EveryStepIsReportedOnceInOrderWithItsLoss) {
  auto trainer = Trainer::Create(Options(), 0, 1);
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  SideChannel side_channel(WorkerGroup(), "trainer");
  ASSERT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
  std::vector<double> reported;
  const auto result = (*trainer)->Run([&](const StepReport& report) {
    reported.push_back(report.loss);
    EXPECT_EQ(report.step, static_cast<int64_t>(reported.size()));
  });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(reported.size(), 8u);
  EXPECT_EQ(result->losses, reported);
}

absl::StatusOr<TrainingResult> ResultOf(const TrainerOptions& options) {
  auto trainer = Trainer::Create(options, 0, 1);
  EXPECT_TRUE(trainer.ok()) << trainer.status();
  const std::unique_ptr<GradientSync> sync = NewSync(options);
  SideChannel side_channel(WorkerGroup(), "trainer");
  EXPECT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
  return (*trainer)->Run([](const StepReport&) {});
}

// So a rank whose output nobody reads for a while does not count as stuck.
TEST(TrainerTest, WhoReportsAStepIsNotAtWork) {
  TrainerOptions options = Options();
  options.activity = std::make_shared<Activity>();
  auto trainer = Trainer::Create(options, 0, 1);
  const std::unique_ptr<GradientSync> sync = NewSync(options);
  SideChannel side_channel(WorkerGroup(), "trainer");
  ASSERT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
  int reports = 0;
  const auto result = (*trainer)->Run([&](const StepReport&) {
    ++reports;
    EXPECT_FALSE(options.activity->working());
  });
  EXPECT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(reports, 8);
}

// Training went on to its last step, and ended well, with losses and parameters that were NaN.
TEST(TrainerTest, ALossThatIsNotFiniteEndsTrainingAlsoOnADevice) {
  for (const bool on_device : {false, true}) {
    TrainerOptions options = Options();
    if (on_device) options.gpu = std::make_shared<FakeGpu>();
    options.recipe.base = 1e30;
    options.steps = 20;
    const absl::Status status = ResultOf(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()),
                testing::ContainsRegex("step [2-9] of 20, rank 0: expected a finite loss, found"));
    options.allow_nonfinite = true;
    const auto result = ResultOf(options);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->losses.size(), 20u);
    EXPECT_FALSE(std::isfinite(result->losses.back()));
  }
}

TEST(TrainerTest, WithALossScaleStepsMayBeSkippedUntilNoScaleHelps) {
  TrainerOptions options = Options();
  options.recipe.base = 1e30;
  options.loss_scaler.emplace();
  options.loss_scaler->initial = 8;
  options.steps = 10;
  const auto result = ResultOf(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->skipped_steps, 0);
  options.steps = 40;
  EXPECT_THAT(std::string(ResultOf(options).status().message()), HasSubstr("at any loss scale"));
}

TEST(TrainerTest, Fp16AndTf32NeedAGpu) {
  TrainerOptions options = Options();
  options.compute.precision = Precision::kFp16;
  EXPECT_THAT(Trainer::Create(options, 0, 1).status().message(), HasSubstr("--precision"));
  options = Options();
  options.allow_tf32 = true;
  EXPECT_THAT(Trainer::Create(options, 0, 1).status().message(), HasSubstr("--tf32"));
}

TEST(TrainerTest, AResNetLearnsInBf16AsInFp32) {
  TrainerOptions options = Options();
  options.model.name = "resnet18";
  options.batch_size = 32;
  options.steps = 40;
  options.recipe.base = 0.01;
  options.optimizer.groups[0].momentum = 0.9;
  for (Precision precision : {Precision::kFp32, Precision::kBf16}) {
    if (precision == Precision::kBf16 && !HasAvx512()) {
      GTEST_SKIP() << "in bf16 this takes LibTorch 1.13 minutes on a CPU without AVX-512";
    }
    options.compute.precision = precision;
    const std::vector<StepReport> steps = Train(options);
    double last = 0;
    for (size_t i = 35; i < 40; ++i) last += steps[i].loss / 5;
    EXPECT_LT(last, 0.8 * steps.front().loss) << PrecisionName(precision);
  }
}

TEST(TrainerTest, CopiesOfTheWeightsChangeNoBit) {
  TrainerOptions options = Options();
  options.compute.precision = Precision::kBf16;
  options.optimizer.groups[0].momentum = 0.9;
  const auto run = [&options](UpdateSite site) {
    auto trainer = Trainer::Create(options, 0, 1);
    const std::unique_ptr<GradientSync> sync = CreateLocalSync(site);
    SideChannel side_channel(WorkerGroup(), "trainer");
    EXPECT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
    return (*trainer)->Run([](const StepReport&) {}).value().params_sha256;
  };
  const auto expect_equal = [&](const std::string& what) {
    for (const UpdateSite site : {UpdateSite::kWorker, UpdateSite::kOwner}) {
      options.compute.weight_copies = false;
      const std::string without = run(site);
      options.compute.weight_copies = true;
      EXPECT_EQ(run(site), without) << what;
    }
  };
  expect_equal("mlp");
  options.accumulate = 2;
  expect_equal("two micro-batches");
  options.accumulate = 1;
  options.steps = 2;
  options.model.name = "gpt";
  options.model.gpt_layers = 1;
  expect_equal("gpt");
}

// The evaluation computes as training does.
TEST(TrainerTest, Bf16IsEvaluatedInBf16) {
  TrainerOptions options = Options();
  options.recipe.base = 0;  // so that all end with the same parameters
  options.evaluate = true;
  const auto test_loss = [&options] {
    auto trainer = Trainer::Create(options, 0, 1);
    const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
    SideChannel side_channel(WorkerGroup(), "trainer");
    EXPECT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
    return (*trainer)->Run([](const StepReport&) {})->test_loss;
  };
  const double fp32 = test_loss();
  options.compute.precision = Precision::kBf16;
  const double bf16 = test_loss();
  EXPECT_NE(bf16, fp32);
  EXPECT_NEAR(bf16, fp32, 0.01 * fp32);
}

TEST(TrainerTest, AStragglerThatIsNoRankIsRefused) {
  TrainerOptions options = Options();
  options.straggler = Straggler::Parse("2:3").value();
  const auto trainer = Trainer::Create(options, 0, 2);
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(trainer.status().message(), HasSubstr("--straggler: expected a rank from 0 to 1"));
}

class TrainerOnADeviceTest : public testing::TestWithParam<ComputeOptions> {};

TEST_P(TrainerOnADeviceTest, TrainsWithTheBitsOfTheHost) {
  TrainerOptions options = Options();
  options.compute = GetParam();
  options.evaluate = true;
  std::vector<TrainingResult> results;
  const auto gpu = std::make_shared<FakeGpu>();
  for (const std::shared_ptr<FakeGpu>& on : {std::shared_ptr<FakeGpu>(), gpu}) {
    options.gpu = on;
    auto trainer = Trainer::Create(options, 0, 1);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    const std::unique_ptr<GradientSync> sync = NewSync(options);
    SideChannel side_channel(WorkerGroup(), "trainer");
    ASSERT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
    // The measured window begins with a GPU that is waited for.
    const int before = gpu->synchronizations() + (on == nullptr ? 0 : 1);
    auto result = (*trainer)->Run([&](const StepReport& r) {
      EXPECT_EQ(gpu->synchronizations(), before);
      if (on == nullptr) return;
      EXPECT_LE(r.times.total, r.times.data + r.times.forward + r.times.backward + r.times.exposed +
                                   r.times.update);
    });
    ASSERT_TRUE(result.ok()) << result.status();
    results.push_back(*std::move(result));
  }
  EXPECT_GT(gpu->calls("Copy"), 0);
  EXPECT_GT(gpu->calls("AllocatePinned"), 0);
  EXPECT_EQ(gpu->unpinned_copies(), 0);
  EXPECT_EQ(results[0].params_sha256, results[1].params_sha256);
  EXPECT_EQ(results[0].losses, results[1].losses);
  EXPECT_EQ(results[0].test_accuracy, results[1].test_accuracy);
  options.gpu.reset();
}

// A FakeGpu that computes at once but says of each update that it takes 5 ms, during which other
// updates wait and the host goes on: a host that only queues.
class SlowGpu : public FakeGpu {
 public:
  static constexpr absl::Duration kUpdate = absl::Milliseconds(5);

  absl::Status SgdStep(const SgdCoefficients& c, float* param, const float* grad,
                       float* momentum_buffer, size_t n, GpuStream stream) override {
    {
      MutexLock lock(&mutex_);
      busy_until_ = std::max(busy_until_, MonotonicTime::Now()) + kUpdate;
      ++updates_;
    }
    return FakeGpu::SgdStep(c, param, grad, momentum_buffer, n, stream);
  }
  absl::Status Record(GpuEvent event, GpuStream stream) override {
    {
      MutexLock lock(&mutex_);
      ends_[event] =
          stream == ComputeStream() ? std::max(busy_until_, MonotonicTime::Now()) : MonotonicTime();
    }
    return FakeGpu::Record(event, stream);
  }
  absl::StatusOr<bool> Done(GpuEvent event) override {
    if (MonotonicTime::Now() < End(event)) return false;
    return FakeGpu::Done(event);
  }
  absl::Status Synchronize(GpuEvent event) override {
    while (MonotonicTime::Now() < End(event)) std::this_thread::yield();
    return FakeGpu::Synchronize(event);
  }
  absl::StatusOr<absl::Duration> Elapsed(GpuEvent from, GpuEvent to) override {
    return End(to) - End(from);
  }
  int updates() {
    MutexLock lock(&mutex_);
    return updates_;
  }

 private:
  MonotonicTime End(GpuEvent event) {
    MutexLock lock(&mutex_);
    return ends_[event];
  }

  Mutex mutex_;
  MonotonicTime busy_until_ ABSL_GUARDED_BY(mutex_);
  std::map<GpuEvent, MonotonicTime> ends_ ABSL_GUARDED_BY(mutex_);
  int updates_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Steps and throughput were those of a host that queues: the faster it was, the faster the GPU.
TEST(TrainerTest, StepsOnADeviceTakeAsLongAsTheDeviceNeedsAndNotTheHost) {
  const auto gpu = std::make_shared<SlowGpu>();
  TrainerOptions options = Options();
  options.gpu = gpu;
  options.steps = 12;
  options.warmup_steps = 4;
  auto trainer = Trainer::Create(options, 0, 1);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  const std::unique_ptr<GradientSync> sync = NewSync(options);
  SideChannel side_channel(WorkerGroup(), "trainer");
  ASSERT_TRUE((*trainer)->Bind(sync.get(), &side_channel).ok());
  std::vector<int64_t> reported;
  const auto result = (*trainer)->Run([&](const StepReport& r) { reported.push_back(r.step); });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(reported, testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
  const absl::Duration step = gpu->updates() / 12 * SlowGpu::kUpdate;
  ASSERT_EQ(result->times.size(), 8u);
  absl::Duration sum;
  for (const StepTimes& times : result->times) {
    EXPECT_GE(times.total, step);
    sum += times.total;
  }
  EXPECT_GE(result->measured, 8 * step);
  EXPECT_LE(sum, result->measured);
  ASSERT_EQ(result->step_ends.size(), 12u);
  for (size_t i = 1; i < 12; ++i) {
    EXPECT_GE(result->step_ends[i] - result->step_ends[i - 1], step);
  }
  options.gpu.reset();
}

INSTANTIATE_TEST_SUITE_P(All, TrainerOnADeviceTest,
                         testing::Values(ComputeOptions{}, ComputeOptions{Precision::kBf16, true}));

TEST(TrainerTest, AStragglerOnADeviceIsRefused) {
  TrainerOptions options = Options();
  options.straggler = *Straggler::Parse("0:2");
  options.gpu = std::make_shared<FakeGpu>();
  const absl::Status status = Trainer::Create(options, 0, 1).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--straggler"));
}

}  // namespace
}  // namespace gradsync
