// What a failure in one stage of a process is to all of them. tests/model_parallel_test.cc has the
// bits.

#include "worker/train/local_pipeline.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"
#include "core/sync/local_sync.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;

constexpr int kClasses = 10;

Batch NewBatch() {
  Batch batch;
  batch.images = at::randn({2, 3, 8, 8});
  batch.labels = at::randint(kClasses, {2}, at::kLong);
  return batch;
}

// A small ResNet in stages, and its steps.
class Job {
 public:
  explicit Job(int stages) {
    ModelOptions model;
    model.name = "resnet18";
    model.image_size = 8;
    model.classes = kClasses;
    model_ = CreateModel(model).value();
    model_->train();
    LocalPipelineOptions options;
    options.stages = stages;
    options.threads = stages;
    options.pipeline.split = stages == 3 ? "3,6" : "5";
    pipeline_ = LocalPipeline::Create(options, model_).value();
    sync_ = CreateLocalSync(UpdateSite::kWorker);
    DdpEngineOptions ddp;
    ddp.optimizer.kind = OptimizerKind::kSgd;
    ddp.optimizer.groups.emplace_back();
    ddp_ = DdpEngine::Create(model_, sync_.get(), nullptr, ddp).value();
  }

  // A step of three micro-batches.
  absl::Status Step(std::function<absl::StatusOr<Batch>(int64_t)> next) {
    PipelineStep step;
    step.options.step = ++steps_;
    step.options.lr = 0.1;
    step.micro_batches = 3;
    step.next = std::move(next);
    step.seed = [](int64_t i) { return static_cast<uint64_t>(i); };
    GS_RETURN_IF_ERROR(pipeline_->Run(*ddp_, step, &times_).status());
    return ddp_->FinishStep(Deadline::In(absl::Seconds(60)));
  }

  const std::vector<StageTimes>& times() const { return times_; }

 private:
  std::shared_ptr<Model> model_;
  std::unique_ptr<LocalPipeline> pipeline_;
  std::unique_ptr<GradientSync> sync_;
  std::unique_ptr<DdpEngine> ddp_;
  std::vector<StageTimes> times_;
  int64_t steps_ = 0;
};

TEST(LocalPipelineTest, StepsFollowEachOtherAndEachStageHasTimes) {
  Job job(3);
  for (int step = 0; step < 2; ++step) {
    const absl::Status status = job.Step([](int64_t) { return NewBatch(); });
    ASSERT_TRUE(status.ok()) << status;
  }
  ASSERT_EQ(job.times().size(), 3u);
  for (const StageTimes& stage : job.times()) {
    EXPECT_GT(stage.forward, absl::ZeroDuration());
    EXPECT_GT(stage.backward, absl::ZeroDuration());
  }
}

TEST(LocalPipelineTest, TheStageWhoseLibTorchThrowsIsNamedAndNobodyWaitsForIt) {
  for (int stages : {2, 3}) {
    Job job(stages);
    const absl::Status status = job.Step([](int64_t i) {
      Batch batch = NewBatch();
      if (i == 1) batch.labels.fill_(kClasses);
      return batch;
    });
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(stages == 2 ? "step 1, stage 1: LibTorch: " : "step 1, stage 2: LibTorch: "));
  }
}

TEST(LocalPipelineTest, ABatchThatIsNotThereEndsTheStep) {
  Job job(2);
  const absl::Status status = job.Step([](int64_t i) -> absl::StatusOr<Batch> {
    if (i == 2) return absl::DataLossError("no more of them");
    return NewBatch();
  });
  EXPECT_EQ(status, absl::DataLossError("no more of them"));
}

}  // namespace
}  // namespace gradsync
