#include "worker/train/batch_source.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/mutex.h"
#include "core/gpu/fake_gpu.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/open_dataset.h"
#include "worker/data/tokens.h"
#include "worker/train/compute_options.h"

namespace gradsync {
namespace {

constexpr int64_t kBatch = 8;

// Batches of the synthetic images, as bytes in pinned memory for a GPU. The last of an epoch is
// smaller.
std::unique_ptr<DataLoader> NewLoader(std::shared_ptr<GpuApi> gpu) {
  const auto dataset = *OpenDataset("synthetic", Split::kTrain);
  SamplerOptions sampler;
  sampler.dataset_size = dataset->size();
  sampler.world_size = 2000;  // so that an epoch has 25 samples
  DataLoaderOptions options;
  options.batch_size = kBatch;
  options.as_bytes = gpu != nullptr;
  options.pin_for = std::move(gpu);
  return *DataLoader::Create(dataset, *RankSampler::Create(sampler), options);
}

BatchUploadOptions Options(at::ScalarType type = at::kFloat, bool channels_last = false) {
  BatchUploadOptions options;
  options.batch_size = kBatch;
  options.type = type;
  options.channels_last = channels_last;
  return options;
}

// A loader and what uploads its batches.
struct Feed {
  explicit Feed(std::shared_ptr<GpuApi> gpu, const BatchUploadOptions& options = Options())
      : loader(NewLoader(gpu)), upload(*BatchUpload::Create(gpu, loader.get(), options)) {}

  void AwaitLoader() const {
    while (!loader->Ready()) std::this_thread::yield();
  }

  std::unique_ptr<DataLoader> loader;
  std::unique_ptr<BatchUpload> upload;
};

TEST(BatchUploadTest, ValuesAreThoseOfTheHostRoundedOnceInEachTypeAndFormat) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    for (const bool channels_last : {false, true}) {
      const auto gpu = std::make_shared<FakeGpu>();
      {
        const at::ScalarType type = ScalarTypeOf(precision);
        const auto format =
            channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
        Feed device(gpu, Options(type, channels_last));
        Feed host(nullptr);
        for (int i = 0; i < 20; ++i) {
          const Batch expected = *host.upload->Next();
          ASSERT_EQ(expected.images.scalar_type(), at::kFloat);
          const absl::StatusOr<Batch> batch = device.upload->Next();
          ASSERT_TRUE(batch.ok()) << batch.status();
          EXPECT_TRUE(batch->images.equal(expected.images.to(type)));
          EXPECT_TRUE(batch->images.is_contiguous(format));
          EXPECT_TRUE(batch->labels.equal(expected.labels));
          EXPECT_EQ(batch->labels.size(0), i % 4 == 3 ? 1 : kBatch);
          EXPECT_EQ(batch->position, expected.position);
          EXPECT_EQ(batch->epoch, expected.epoch);
          ASSERT_EQ(device.upload->Prefetch(), absl::OkStatus());
        }
        EXPECT_LE(device.loader->buffers_allocated(), 6);
        EXPECT_EQ(gpu->synchronizations(), 0);
        EXPECT_EQ(gpu->unpinned_copies(), 0);
      }
      EXPECT_EQ(gpu->live_objects(), 0);
    }
  }
}

TEST(BatchUploadTest, AllBatchesLieInTheSameMemory) {
  const auto gpu = std::make_shared<FakeGpu>();
  Feed feed(gpu);
  const Batch first = *feed.upload->Next();
  for (int i = 0; i < 8; ++i) {
    const Batch batch = *feed.upload->Next();
    EXPECT_EQ(batch.images.data_ptr(), first.images.data_ptr());
    EXPECT_EQ(batch.labels.data_ptr(), first.labels.data_ptr());
  }
}

TEST(BatchUploadTest, APrefetchThatFindsNoBatchReadyLeavesItToNext) {
  const auto gpu = std::make_shared<FakeGpu>();
  Feed feed(gpu);
  Feed host(nullptr);
  for (int i = 0; i < 12; ++i) {
    if (i % 3 == 1) feed.AwaitLoader();
    ASSERT_EQ(feed.upload->Prefetch(), absl::OkStatus());
    ASSERT_EQ(feed.upload->Prefetch(), absl::OkStatus());  // one ahead is all
    EXPECT_TRUE(feed.upload->Next()->labels.equal(host.upload->Next()->labels));
  }
}

std::unique_ptr<DataLoader> NewTokenLoader(std::shared_ptr<GpuApi> gpu, int threads) {
  const auto dataset = *OpenTokens("synthetic", Split::kTrain, /*context=*/5);
  SamplerOptions sampler;
  sampler.dataset_size = dataset->size();
  sampler.world_size = 800;  // so that an epoch has 25 samples
  DataLoaderOptions options;
  options.batch_size = kBatch;
  options.threads = threads;
  options.pin_for = std::move(gpu);
  return *DataLoader::Create(dataset, *RankSampler::Create(sampler), options);
}

TEST(BatchUploadTest, TokensArriveAsTheyAre) {
  const auto gpu = std::make_shared<FakeGpu>();
  {
    BatchUploadOptions options = Options(at::kBFloat16);
    options.context = 5;
    const auto of_device = NewTokenLoader(gpu, /*threads=*/2);
    const auto of_host = NewTokenLoader(nullptr, /*threads=*/1);
    const auto device = *BatchUpload::Create(gpu, of_device.get(), options);
    const auto host = *BatchUpload::Create(nullptr, of_host.get(), options);
    for (int i = 0; i < 12; ++i) {
      const Batch expected = *host->Next();
      const absl::StatusOr<Batch> batch = device->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      EXPECT_EQ(batch->images.sizes(), (at::IntArrayRef{i % 4 == 3 ? 1 : kBatch, 5}));
      EXPECT_TRUE(batch->images.equal(expected.images));
      EXPECT_TRUE(batch->labels.equal(expected.labels));
      EXPECT_TRUE(batch->labels.narrow(1, 0, 4).equal(batch->images.narrow(1, 1, 4)));
      ASSERT_EQ(device->Prefetch(), absl::OkStatus());
    }
    EXPECT_EQ(gpu->unpinned_copies(), 0);
    options.context = 6;
    EXPECT_TRUE(absl::IsInvalidArgument(
        (*BatchUpload::Create(gpu, of_device.get(), options))->Next().status()));
  }
  EXPECT_EQ(gpu->live_objects(), 0);
}

// Counts the copies of images of whole batches that have been done.
class CountingGpu : public QueuedGpu {
 public:
  absl::Status Copy(void* to, const void* from, size_t bytes, GpuStream stream) override {
    const absl::Status status = QueuedGpu::Copy(to, from, bytes, stream);
    if (bytes == kBatch * 3072) Enqueue(stream, [this] { ++image_copies_; });
    return status;
  }
  int image_copies() const { return image_copies_; }

 private:
  std::atomic<int> image_copies_{0};
};

// On a GPU whose compute stream is busy until `step_may_end`.
class HeldStepTest : public testing::Test {
 protected:
  HeldStepTest() : gpu_(std::make_shared<CountingGpu>()), feed_(std::make_unique<Feed>(gpu_)) {
    upload_stream_ = gpu_->streams().back();
    Feed host(nullptr);
    for (int i = 0; i < 4; ++i) expected_.push_back(host.upload->Next()->images.clone());
  }
  ~HeldStepTest() override {
    if (!step_may_end_.HasBeenNotified()) step_may_end_.Notify();
    feed_.reset();
    EXPECT_EQ(gpu_->live_objects(), QueuedGpu::kOwnObjects);
  }

  void HoldStep() {
    gpu_->Enqueue(gpu_->ComputeStream(), [this] { step_may_end_.WaitForNotification(); });
  }

  // A step that remembers what it saw.
  void QueueStep(const Batch& batch) {
    gpu_->Enqueue(gpu_->ComputeStream(),
                  [this, images = batch.images] { seen_.push_back(images.clone()); });
  }

  void Prefetch() {
    feed_->AwaitLoader();
    ASSERT_EQ(feed_->upload->Prefetch(), absl::OkStatus());
  }

  void NotifyAfter(GpuStream stream, Notification* notification) {
    gpu_->Enqueue(stream, [notification] { notification->Notify(); });
  }

  const std::shared_ptr<CountingGpu> gpu_;
  std::unique_ptr<Feed> feed_;
  GpuStream upload_stream_ = nullptr;
  std::vector<at::Tensor> expected_;
  Notification step_may_end_;
  std::vector<at::Tensor> seen_;
};

TEST_F(HeldStepTest, TheNextBatchIsCopiedWhileTheStepRuns) {
  const Batch batch = *feed_->upload->Next();
  HoldStep();
  QueueStep(batch);
  Prefetch();
  Notification copied;
  NotifyAfter(upload_stream_, &copied);
  copied.WaitForNotification();  // hangs where the copy waits for the step
  EXPECT_EQ(gpu_->image_copies(), 2);
  EXPECT_EQ(gpu_->synchronizations(), 0);
}

TEST_F(HeldStepTest, MemoryStaysUntilTheStepHasReadIt) {
  HoldStep();
  QueueStep(*feed_->upload->Next());
  std::atomic<bool> gone{false};
  std::thread destroyer([&] {
    feed_->upload.reset();
    gone = true;
  });
  GiveOthersTime();
  EXPECT_FALSE(gone);
  step_may_end_.Notify();
  destroyer.join();
}

TEST_F(HeldStepTest, ABufferIsNotOverwrittenBeforeTheComputeStreamHasReadIt) {
  HoldStep();
  // All that follows is queued while the step runs: the GPU has read neither of the two buffers.
  for (int i = 0; i < 4; ++i) {
    QueueStep(*feed_->upload->Next());
    if (i < 3) Prefetch();
  }
  Notification copied, done;
  NotifyAfter(upload_stream_, &copied);
  GiveOthersTime();
  EXPECT_FALSE(copied.HasBeenNotified());
  EXPECT_EQ(gpu_->synchronizations(), 0);
  step_may_end_.Notify();
  NotifyAfter(gpu_->ComputeStream(), &done);
  done.WaitForNotification();
  copied.WaitForNotification();
  ASSERT_EQ(seen_.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(seen_[i].equal(expected_[i])) << i;
}

TEST_F(HeldStepTest, TheComputeStreamWaitsForTheCopy) {
  Notification copy_may_begin;
  gpu_->Enqueue(upload_stream_, [&] { copy_may_begin.WaitForNotification(); });
  QueueStep(*feed_->upload->Next());
  Notification done;
  NotifyAfter(gpu_->ComputeStream(), &done);
  GiveOthersTime();
  EXPECT_FALSE(done.HasBeenNotified());
  copy_may_begin.Notify();
  done.WaitForNotification();
  EXPECT_TRUE(seen_.at(0).equal(expected_[0]));
}

// The loader would write the next images into memory from which the GPU has yet to copy.
TEST_F(HeldStepTest, ABatchOnItsWayIsNotGivenBackToTheLoader) {
  HoldStep();
  for (int i = 0; i < 12; ++i) {
    QueueStep(*feed_->upload->Next());
    Prefetch();
  }
  // Two copies had no step to wait for; the others' batches are still held.
  EXPECT_GE(feed_->loader->buffers_allocated(), 11);
}

TEST(BatchUploadTest, WhatFailsOnTheDeviceIsReturned) {
  for (const char* const method : {"Copy", "Done", "Record", "StreamWait", "LookUpBytes"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    {
      Feed feed(gpu);
      ASSERT_TRUE(feed.upload->Next().ok());
      gpu->FailNext(method, absl::InternalError("lost"));
      EXPECT_TRUE(absl::IsInternal(feed.upload->Next().status())) << method;
    }
    EXPECT_EQ(gpu->live_objects(), 0);
  }
  for (const char* const method : {"AllocateDevice", "AllocatePinned", "CreateStream"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    const auto loader = NewLoader(gpu);
    gpu->FailNext(method, absl::ResourceExhaustedError("full"));
    EXPECT_TRUE(
        absl::IsResourceExhausted(BatchUpload::Create(gpu, loader.get(), Options()).status()))
        << method;
  }
}

TEST(BatchUploadTest, BatchesOfAnotherShapeAreRefused) {
  const auto gpu = std::make_shared<FakeGpu>();
  const auto loader = NewLoader(gpu);
  BatchUploadOptions options = Options();
  options.batch_size = kBatch - 1;
  const auto upload = *BatchUpload::Create(gpu, loader.get(), options);
  EXPECT_TRUE(absl::IsInvalidArgument(upload->Next().status()));
}

TEST(BatchUploadTest, WithoutPinnedMemoryThereIsNoLoader) {
  const auto gpu = std::make_shared<FakeGpu>();
  gpu->FailNext("AllocatePinned", absl::ResourceExhaustedError("full"));
  const auto dataset = *OpenDataset("synthetic", Split::kTrain);
  SamplerOptions sampler;
  sampler.dataset_size = dataset->size();
  DataLoaderOptions options;
  options.batch_size = kBatch;
  options.pin_for = gpu;
  const absl::Status status =
      DataLoader::Create(dataset, *RankSampler::Create(sampler), options).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
}

}  // namespace
}  // namespace gradsync
