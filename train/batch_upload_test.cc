#include "train/batch_upload.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gpu/fake_gpu.h"
#include "gtest/gtest.h"
#include "train/open_dataset.h"

namespace gradsync {
namespace {

std::unique_ptr<DataLoader> NewLoader(std::shared_ptr<GpuApi> gpu) {
  const auto dataset = *OpenDataset("synthetic", Split::kTrain);
  SamplerOptions sampler;
  sampler.dataset_size = dataset->size();
  DataLoaderOptions options;
  options.batch_size = 8;
  options.pin_for = std::move(gpu);
  return *DataLoader::Create(dataset, *DistributedSampler::Create(sampler), options);
}

TEST(BatchUploadTest, BatchesComeFromPinnedMemoryThatIsUsedAgainWithTheSameValues) {
  const auto gpu = std::make_shared<FakeGpu>();
  {
    const auto pinned = NewLoader(gpu);
    const auto plain = NewLoader(nullptr);
    EXPECT_GT(gpu->calls("AllocatePinned"), 0);
    BatchUpload upload(gpu);
    BatchUpload none(nullptr);
    for (int i = 0; i < 20; ++i) {
      const auto uploaded = upload.Upload(*pinned->Next());
      ASSERT_TRUE(uploaded.ok()) << uploaded.status();
      const auto expected = none.Upload(*plain->Next());
      EXPECT_TRUE(uploaded->images.equal(expected->images));
      EXPECT_TRUE(uploaded->labels.equal(expected->labels));
    }
    EXPECT_LE(pinned->buffers_allocated(), 5);
    EXPECT_EQ(gpu->synchronizations(), 0);
  }
  EXPECT_EQ(gpu->live_objects(), 0);
}

TEST(BatchUploadTest, ABatchOnItsWayIsNotGivenBack) {
  const auto gpu = std::make_shared<FakeGpu>();
  BatchUpload upload(gpu);
  const auto loader = NewLoader(gpu);
  Batch batch = *loader->Next();
  const at::Tensor images = batch.images;
  ASSERT_TRUE(upload.Upload(std::move(batch)).ok());
  EXPECT_GT(images.use_count(), 1);
  gpu->FailNext("Done", absl::InternalError("lost"));
  EXPECT_TRUE(absl::IsInternal(upload.Upload(*loader->Next()).status()));
  ASSERT_TRUE(upload.Upload(*loader->Next()).ok());
  EXPECT_EQ(images.use_count(), 1);  // the fake has done its copy
}

TEST(BatchUploadTest, WithoutPinnedMemoryThereIsNoLoader) {
  const auto gpu = std::make_shared<FakeGpu>();
  gpu->FailNext("AllocatePinned", absl::ResourceExhaustedError("full"));
  const auto dataset = *OpenDataset("synthetic", Split::kTrain);
  SamplerOptions sampler;
  sampler.dataset_size = dataset->size();
  DataLoaderOptions options;
  options.batch_size = 8;
  options.pin_for = gpu;
  const absl::Status status =
      DataLoader::Create(dataset, *DistributedSampler::Create(sampler), options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace gradsync
