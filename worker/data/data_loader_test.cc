#include "worker/data/data_loader.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ATen/ops/equal.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/augment.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/data/synthetic_dataset.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::shared_ptr<const ImageDataset> Synthetic(int64_t size) {
  SyntheticDataset::Options options;
  options.seed = 1;
  options.size = size;
  return std::make_shared<SyntheticDataset>(options);
}

RankSampler Sampler(int64_t size, int rank = 0, int world_size = 1) {
  SamplerOptions options;
  options.dataset_size = size;
  options.rank = rank;
  options.world_size = world_size;
  options.seed = 2;
  return RankSampler::Create(options).value();
}

std::vector<Batch> ReadAll(const ImageDataset& dataset, const RankSampler& sampler,
                           const DataLoaderOptions& options) {
  // A non-owning pointer: the dataset outlives the loader.
  auto loader = DataLoader::Create(
      std::shared_ptr<const ImageDataset>(std::shared_ptr<void>(), &dataset), sampler, options);
  EXPECT_TRUE(loader.ok()) << loader.status();
  std::vector<Batch> batches;
  while (true) {
    absl::StatusOr<Batch> batch = (*loader)->Next();
    if (!batch.ok()) {
      EXPECT_EQ(batch.status().code(), absl::StatusCode::kOutOfRange) << batch.status();
      return batches;
    }
    batches.push_back(*std::move(batch));
  }
}

// Ten images, none of which can be read before Release().
class HeldDataset : public ImageDataset {
 public:
  int64_t size() const override { return 10; }
  int classes() const override { return 10; }
  ImageShape shape() const override { return ImageShape{}; }
  absl::StatusOr<ImageExample> Get(int64_t, absl::Span<uint8_t> scratch) const override {
    released_.WaitForNotification();
    return ImageExample{scratch.data(), 0};
  }
  void Release() { released_.Notify(); }

 private:
  Notification released_;
};

TEST(DataLoaderTest, BatchesAreTheSamplersOrderAugmentedOneByOne) {
  const auto dataset = Synthetic(103);
  const RankSampler sampler = Sampler(103, 1, 2);
  DataLoaderOptions options;
  options.batch_size = 20;
  options.augment_seed = 7;
  options.start_epoch = 3;
  options.end_epoch = 5;
  const std::vector<Batch> batches = ReadAll(*dataset, sampler, options);
  ASSERT_EQ(batches.size(), 6);
  const Augmenter augmenter(dataset->shape(), options.augmentation);
  std::vector<uint8_t> scratch(dataset->shape().bytes());
  std::vector<float> image(scratch.size());
  size_t b = 0;
  for (int64_t epoch : {3, 4}) {
    const std::vector<int64_t> indices = sampler.Indices(epoch);
    for (int64_t begin = 0; begin < 52; begin += 20, ++b) {
      const Batch& batch = batches[b];
      const int64_t size = std::min<int64_t>(20, 52 - begin);
      EXPECT_EQ(batch.epoch, epoch);
      EXPECT_EQ(batch.position, begin);
      EXPECT_EQ(batch.next_position, begin + size);
      EXPECT_EQ(batch.last_of_epoch, begin == 40);
      ASSERT_EQ(batch.images.sizes(), (at::IntArrayRef{size, 3, 32, 32}));
      ASSERT_EQ(batch.labels.sizes(), (at::IntArrayRef{size}));
      ASSERT_TRUE(batch.images.is_contiguous());
      for (int64_t i = 0; i < size; ++i) {
        const int64_t index = indices[begin + i];
        const ImageExample example = dataset->Get(index, absl::MakeSpan(scratch)).value();
        EXPECT_EQ(batch.labels.data_ptr<int64_t>()[i], example.label);
        augmenter.Train({7, epoch, index}, example.pixels, image.data());
        const float* found = batch.images.data_ptr<float>() + i * 3072;
        ASSERT_TRUE(std::equal(image.begin(), image.end(), found)) << epoch << " " << begin + i;
      }
    }
  }
}

TEST(DataLoaderTest, ThreadsAndDepthChangeNoBit) {
  const auto dataset = Synthetic(230);
  DataLoaderOptions options;
  options.batch_size = 50;
  options.end_epoch = 4;
  const std::vector<Batch> expected = ReadAll(*dataset, Sampler(230), options);
  ASSERT_EQ(expected.size(), 20);
  for (int threads : {1, 2, 7}) {
    for (int depth : {1, 3, 8}) {
      options.threads = threads;
      options.depth = depth;
      const std::vector<Batch> found = ReadAll(*dataset, Sampler(230), options);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t b = 0; b < found.size(); ++b) {
        EXPECT_TRUE(at::equal(found[b].images, expected[b].images)) << threads << " " << depth;
        EXPECT_TRUE(at::equal(found[b].labels, expected[b].labels)) << threads << " " << depth;
        EXPECT_EQ(found[b].epoch, expected[b].epoch);
        EXPECT_EQ(found[b].position, expected[b].position);
      }
    }
  }
}

TEST(DataLoaderTest, RestartAnywhereSeesTheSameBatches) {
  const auto dataset = Synthetic(70);
  DataLoaderOptions options;
  options.batch_size = 32;
  options.end_epoch = 3;
  const std::vector<Batch> all = ReadAll(*dataset, Sampler(70), options);
  ASSERT_EQ(all.size(), 9);
  for (size_t done = 1; done < all.size(); ++done) {
    options.start_epoch = all[done - 1].epoch;
    options.start_position = all[done - 1].next_position;
    const std::vector<Batch> rest = ReadAll(*dataset, Sampler(70), options);
    ASSERT_EQ(rest.size(), all.size() - done);
    for (size_t b = 0; b < rest.size(); ++b) {
      EXPECT_TRUE(at::equal(rest[b].images, all[done + b].images));
      EXPECT_EQ(rest[b].epoch, all[done + b].epoch);
      EXPECT_EQ(rest[b].position, all[done + b].position);
    }
  }
}

TEST(DataLoaderTest, DropLastBatchSkipsTheRemainderOfEachEpoch) {
  const auto dataset = Synthetic(70);
  DataLoaderOptions options;
  options.batch_size = 32;
  options.end_epoch = 2;
  options.drop_last_batch = true;
  const std::vector<Batch> batches = ReadAll(*dataset, Sampler(70), options);
  ASSERT_EQ(batches.size(), 4);
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.images.size(0), 32);
    EXPECT_EQ(batch.last_of_epoch, batch.position == 32);
  }
  EXPECT_EQ(batches[2].epoch, 1);
}

TEST(DataLoaderTest, WithoutAugmentationImagesAreOnlyNormalised) {
  const auto dataset = Synthetic(4);
  SamplerOptions in_order;
  in_order.dataset_size = 4;
  in_order.shuffle = false;
  DataLoaderOptions options;
  options.batch_size = 4;
  options.augment = false;
  options.end_epoch = 1;
  const std::vector<Batch> batches =
      ReadAll(*dataset, RankSampler::Create(in_order).value(), options);
  ASSERT_EQ(batches.size(), 1);
  const Augmenter augmenter(dataset->shape(), options.augmentation);
  std::vector<uint8_t> scratch(3072);
  std::vector<float> image(3072);
  for (int64_t i = 0; i < 4; ++i) {
    augmenter.Evaluate(dataset->Get(i, absl::MakeSpan(scratch))->pixels, image.data());
    EXPECT_TRUE(
        std::equal(image.begin(), image.end(), batches[0].images.data_ptr<float>() + i * 3072));
  }
}

TEST(DataLoaderTest, AsBytesBatchesAreTheSameButForTheNormalisation) {
  const auto dataset = Synthetic(70);
  const Augmenter augmenter(dataset->shape(), AugmentOptions());
  for (const bool augment : {false, true}) {
    DataLoaderOptions options;
    options.batch_size = 32;
    options.end_epoch = 2;
    options.augment = augment;
    const std::vector<Batch> floats = ReadAll(*dataset, Sampler(70), options);
    options.as_bytes = true;
    options.threads = 3;
    const std::vector<Batch> bytes = ReadAll(*dataset, Sampler(70), options);
    ASSERT_EQ(bytes.size(), floats.size());
    for (size_t b = 0; b < bytes.size(); ++b) {
      EXPECT_TRUE(at::equal(bytes[b].labels, floats[b].labels));
      EXPECT_EQ(bytes[b].position, floats[b].position);
      ASSERT_EQ(bytes[b].images.sizes(), floats[b].images.sizes());
      ASSERT_EQ(bytes[b].images.scalar_type(), at::kByte);
      const uint8_t* const found = bytes[b].images.data_ptr<uint8_t>();
      const float* const expected = floats[b].images.data_ptr<float>();
      for (int64_t i = 0; i < floats[b].images.numel(); ++i) {
        ASSERT_EQ(augmenter.values()[i / 1024 % 3][found[i]], expected[i]) << b << " " << i;
      }
    }
  }
}

TEST(DataLoaderTest, ReadySaysWhetherABatchIsThere) {
  const auto dataset = std::make_shared<HeldDataset>();
  DataLoaderOptions options;
  options.batch_size = 10;
  options.depth = 1;
  options.end_epoch = 1;
  auto loader = DataLoader::Create(dataset, Sampler(10), options).value();
  EXPECT_FALSE(loader->Ready());
  dataset->Release();
  ASSERT_TRUE(loader->Next().ok());
  EXPECT_FALSE(loader->Ready());  // nothing follows
  EXPECT_EQ(loader->Next().status().code(), absl::StatusCode::kOutOfRange);
}

TEST(DataLoaderTest, ReadyMeansThatNextDoesNotWait) {
  DataLoaderOptions options;
  options.batch_size = 10;
  auto loader = DataLoader::Create(Synthetic(100), Sampler(100), options).value();
  while (!loader->Ready()) std::this_thread::yield();
  EXPECT_EQ(loader->Next()->position, 0);
}

TEST(DataLoaderTest, MemoryIsReusedWhenTheCallerLetsGoOfBatches) {
  DataLoaderOptions options;
  options.batch_size = 10;
  auto loader = DataLoader::Create(Synthetic(100), Sampler(100), options).value();
  Batch batch;  // Held during the call of Next(), as a training loop does.
  for (int i = 0; i < 100; ++i) batch = loader->Next().value();
  EXPECT_LE(loader->buffers_allocated(), options.depth + 2);
}

TEST(DataLoaderTest, BatchesThatTheCallerKeepsAreNeverOverwritten) {
  DataLoaderOptions options;
  options.batch_size = 10;
  auto loader = DataLoader::Create(Synthetic(100), Sampler(100), options).value();
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  for (int i = 0; i < 30; ++i) {
    Batch batch = loader->Next().value();
    // Only a view of a view survives, or a tensor that shares nothing but the storage.
    const at::Tensor part = batch.images.narrow(0, 3, 4);
    const at::Tensor view = i % 2 == 0 ? part.view({-1}) : part.detach();
    kept.emplace_back(view, view.clone());
  }
  loader.reset();
  for (const auto& [view, copy] : kept) EXPECT_TRUE(at::equal(view, copy));
}

TEST(DataLoaderTest, DestructionWithBatchesUnreadIsClean) {
  for (int i = 0; i < 20; ++i) {
    DataLoaderOptions options;
    options.batch_size = 64;
    options.threads = 3;
    options.depth = 4;
    auto loader = DataLoader::Create(Synthetic(1000), Sampler(1000), options).value();
    for (int j = 0; j < i % 3; ++j) ASSERT_TRUE(loader->Next().ok());
  }
}

// A loader joined its threads, so one that waited for a disk held the process up for ever.
TEST(DataLoaderTest, AThreadThatHangsInASampleIsNamedAndNotWaitedFor) {
  const auto held = std::make_shared<HeldDataset>();
  DataLoaderOptions options;
  options.batch_size = 2;
  options.threads = 2;
  options.while_waiting = [](absl::string_view what, absl::Duration reading) {
    return reading < absl::Milliseconds(300)
               ? absl::OkStatus()
               : absl::CancelledError(absl::StrCat("waiting for ", what));
  };
  auto loader = DataLoader::Create(held, Sampler(10), options).value();
  const absl::Status status = loader->Next().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(absl::StartsWith(status.message(), "waiting for sample ")) << status;
  loader.reset();
  // The threads go on with the dataset, which is theirs too.
  EXPECT_GT(held.use_count(), 1);
  held->Release();
}

// Fails for the samples it is told to.
class FailingDataset : public ImageDataset {
 public:
  explicit FailingDataset(std::vector<int64_t> bad) : bad_(std::move(bad)) {}
  int64_t size() const override { return 100; }
  int classes() const override { return 10; }
  ImageShape shape() const override { return ImageShape{}; }
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override {
    for (int64_t bad : bad_) {
      if (bad == index) return absl::DataLossError(absl::StrCat("cannot decode sample ", index));
    }
    return ImageExample{scratch.data(), 0};
  }

 private:
  const std::vector<int64_t> bad_;
};

TEST(DataLoaderTest, ErrorOfTheFirstBadSampleFailsItsBatchOnly) {
  SamplerOptions in_order;
  in_order.dataset_size = 100;
  in_order.shuffle = false;
  DataLoaderOptions options;
  options.batch_size = 50;
  options.threads = 4;
  for (int i = 0; i < 20; ++i) {
    auto loader =
        DataLoader::Create(std::make_shared<FailingDataset>(std::vector<int64_t>{99, 70, 83}),
                           RankSampler::Create(in_order).value(), options)
            .value();
    EXPECT_TRUE(loader->Next().ok());
    const absl::Status error = loader->Next().status();
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    EXPECT_EQ(error.message(), "cannot decode sample 70");
    EXPECT_TRUE(loader->Next().ok());
  }
}

// Samples of its own making: the value of every pixel is its epoch's and its index's.
class OwnSamples : public ImageDataset {
 public:
  int64_t size() const override { return 40; }
  int classes() const override { return 10; }
  ImageShape shape() const override { return {3, 2, 2}; }
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override {
    std::fill(scratch.begin(), scratch.end(), static_cast<uint8_t>(index));
    return ImageExample{scratch.data(), 1};
  }
  bool augments() const override { return true; }
  absl::StatusOr<ImageExample> GetAugmented(const AugmentKey& key,
                                            absl::Span<uint8_t> scratch) const override {
    const int64_t value = 100 + key.sample + 40 * key.epoch + static_cast<int64_t>(key.seed);
    std::fill(scratch.begin(), scratch.end(), static_cast<uint8_t>(value));
    return ImageExample{scratch.data(), 2};
  }
  Normalisation normalisation() const override { return {{0, 0.5, 1}, {1, 2, 4}}; }
};

TEST(DataLoaderTest, ADatasetThatAugmentsIsCroppedAndFlippedNoMore) {
  const OwnSamples dataset;
  DataLoaderOptions options;
  options.batch_size = 40;
  options.end_epoch = 2;
  options.augment_seed = 3;
  options.augmentation = AugmentationOf(dataset);
  const std::vector<Batch> floats = ReadAll(dataset, Sampler(40), options);
  options.as_bytes = true;
  const std::vector<Batch> bytes = ReadAll(dataset, Sampler(40), options);
  ASSERT_EQ(floats.size(), 2);
  ASSERT_EQ(bytes.size(), 2);
  for (int epoch : {0, 1}) {
    const std::vector<int64_t> indices = Sampler(40).Indices(epoch);
    for (int64_t i = 0; i < 40; ++i) {
      const int64_t expected = 103 + indices[i] + 40 * epoch;
      for (int64_t p = 0; p < 12; ++p) {
        ASSERT_EQ(bytes[epoch].images.data_ptr<uint8_t>()[12 * i + p], expected);
        const float mean[] = {0, 0.5, 1}, deviation[] = {1, 2, 4};
        ASSERT_FLOAT_EQ(floats[epoch].images.data_ptr<float>()[12 * i + p],
                        (expected / 255.0f - mean[p / 4]) / deviation[p / 4]);
      }
      EXPECT_EQ(floats[epoch].labels.data_ptr<int64_t>()[i], 2);
    }
  }
  options.augment = false;
  const std::vector<Batch> plain = ReadAll(dataset, Sampler(40), options);
  EXPECT_EQ(plain[0].images.data_ptr<uint8_t>()[0], Sampler(40).Indices(0)[0]);
}

// A consumer that does nothing but ask always waits.
TEST(DataLoaderTest, ThreadsAreAddedWhileTheCallerWaitsUpToTheMost) {
  const auto dataset = Synthetic(2000);
  DataLoaderOptions options;
  options.batch_size = 100;
  options.most_threads = 3;
  auto loader = DataLoader::Create(dataset, Sampler(2000), options).value();
  EXPECT_EQ(loader->threads(), 1);
  const MonotonicTime start = MonotonicTime::Now();
  while (loader->threads() < 3) {
    ASSERT_TRUE(loader->Next().ok());
    ASSERT_LT(MonotonicTime::Now() - start, absl::Seconds(30));
  }
  const MonotonicTime grown = MonotonicTime::Now();
  while (MonotonicTime::Now() - grown < absl::Milliseconds(300)) ASSERT_TRUE(loader->Next().ok());
  EXPECT_EQ(loader->threads(), 3);

  // Bits are those of one thread, before and after.
  options.end_epoch = 30;
  const std::vector<Batch> found = ReadAll(*dataset, Sampler(2000), options);
  options.most_threads = 0;
  const std::vector<Batch> expected = ReadAll(*dataset, Sampler(2000), options);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t b = 0; b < found.size(); ++b) {
    ASSERT_TRUE(at::equal(found[b].images, expected[b].images)) << b;
  }
}

TEST(DataLoaderTest, BatchLargerThanTheRanksShareIsRejectedWithBothNumbers) {
  DataLoaderOptions options;
  options.batch_size = 51;
  const auto loader = DataLoader::Create(Synthetic(100), Sampler(100, 0, 2), options);
  EXPECT_EQ(loader.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(loader.status().message(),
              AllOf(HasSubstr("batch_size 51"), HasSubstr("share of 50")));
  options.batch_size = 50;
  EXPECT_TRUE(DataLoader::Create(Synthetic(100), Sampler(100, 0, 2), options).ok());
}

TEST(DataLoaderTest, OtherBadOptionsAreRejected) {
  auto code = [](DataLoaderOptions options, int64_t sampler_size = 100) {
    return DataLoader::Create(Synthetic(100), Sampler(sampler_size), options).status().code();
  };
  DataLoaderOptions good;
  good.batch_size = 10;
  EXPECT_EQ(code(good), absl::StatusCode::kOk);
  std::vector<DataLoaderOptions> bad(7, good);
  bad[0].batch_size = 0;
  bad[1].threads = 0;
  bad[2].depth = 0;
  bad[3].start_epoch = -1;
  bad[4].start_position = -1;
  bad[5].start_position = 101;
  bad[6].start_epoch = 3, bad[6].end_epoch = 2;
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(code(bad[i]), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(code(good, 99), absl::StatusCode::kInvalidArgument);
}

TEST(DataLoaderTest, EmptyRangeOfEpochsGivesNoBatch) {
  DataLoaderOptions options;
  options.batch_size = 10;
  options.start_epoch = options.end_epoch = 2;
  EXPECT_TRUE(ReadAll(*Synthetic(100), Sampler(100), options).empty());
  // All of the last epoch is already seen.
  options.start_epoch = 1;
  options.start_position = 100;
  EXPECT_TRUE(ReadAll(*Synthetic(100), Sampler(100), options).empty());
}

}  // namespace
}  // namespace gradsync
