#include "worker/train/job_inputs.h"

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/equal.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/models/create_model.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// 50,000 images are 16,667 for each of three ranks: 8,333 batches of two and one of a single image,
// whose last feature maps are 1x1.
TrainerOptions Options() {
  TrainerOptions options;
  options.model.name = "resnet18";
  options.batch_size = 2;
  options.optimizer.groups.emplace_back();
  return options;
}

std::shared_ptr<Model> NewModel(const TrainerOptions& options, const JobInputs& inputs) {
  return CreateModel(FitModel(options.model, {inputs.train, inputs.train_tokens}).value()).value();
}

absl::Status Check(const TrainerOptions& options) {
  const JobInputs inputs = OpenJobInputs(options, /*rank=*/0, /*world_size=*/3).value();
  const std::shared_ptr<Model> model = NewModel(options, inputs);
  const absl::Status status = CheckBatchOfOne(options, inputs, *model);
  // Whatever it was run for.
  const std::vector<at::Tensor> buffers = model->buffers();
  const std::vector<at::Tensor> fresh = NewModel(options, inputs)->buffers();
  for (size_t i = 0; i < buffers.size(); ++i) EXPECT_TRUE(at::equal(buffers[i], fresh[i])) << i;
  return status;
}

// Such a job trained for an epoch and failed with its last batch.
TEST(CheckBatchOfOneTest, ASingleImageThatCannotBeNormalisedIsRefused) {
  TrainerOptions options = Options();
  const absl::Status status = Check(options);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith("--batch_size: expected one without batches of a single image"),
                    HasSubstr("synthetic is 16667 images"), HasSubstr("found \"2\"")));
  options.steps = 8334;
  EXPECT_FALSE(Check(options).ok());
  options.steps = 1;
  options.batch_size = 1;
  EXPECT_FALSE(Check(options).ok());
}

TEST(CheckBatchOfOneTest, APartOfABatchIsLikeABatch) {
  TrainerOptions options = Options();
  options.batch_size = 4;  // three are left
  EXPECT_EQ(Check(options), absl::OkStatus());
  options.data_parallel = 2;
  EXPECT_THAT(std::string(Check(options).message()), HasSubstr("--data_parallel=2"));
}

TEST(CheckBatchOfOneTest, WhatNeverComesToOneOrTakesItIsNot) {
  TrainerOptions options = Options();
  options.steps = 8333;
  EXPECT_EQ(Check(options), absl::OkStatus()) << "ends before";
  options = Options();
  options.batch_size = 3;
  EXPECT_EQ(Check(options), absl::OkStatus()) << "two are left";
  options = Options();
  options.model.stem = "cifar";
  EXPECT_EQ(Check(options), absl::OkStatus()) << "4x4 values per channel";
  options = Options();
  options.model.name = "mlp";
  EXPECT_EQ(Check(options), absl::OkStatus()) << "no BatchNorm";
}

TEST(CheckBatchOfOneTest, RanksThatNormaliseTogetherHaveMoreThanOne) {
  TrainerOptions options = Options();
  options.sync_batchnorm = true;
  EXPECT_EQ(Check(options), absl::OkStatus());
  options.synchronised = false;
  EXPECT_FALSE(Check(options).ok());
}

}  // namespace
}  // namespace gradsync
