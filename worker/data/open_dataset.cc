#include "worker/data/open_dataset.h"

#include <atomic>
#include <exception>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"
#include "worker/data/cifar10.h"
#include "worker/data/image_folder.h"
#include "worker/data/synthetic_dataset.h"

namespace gradsync {
namespace {

class SkippingDataset : public ImageDataset {
 public:
  SkippingDataset(std::shared_ptr<const ImageDataset> dataset, SkipDamagedOptions options)
      : dataset_(std::move(dataset)), options_(std::move(options)) {}

  int64_t size() const override { return dataset_->size(); }
  int classes() const override { return dataset_->classes(); }
  ImageShape shape() const override { return dataset_->shape(); }
  bool augments() const override { return dataset_->augments(); }
  Normalisation normalisation() const override { return dataset_->normalisation(); }
  std::string name(int64_t index) const override { return dataset_->name(index); }
  DataIdentity identity() const override { return dataset_->identity(); }
  std::vector<std::string> remarks() const override { return dataset_->remarks(); }

  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override {
    return First(index, [&](int64_t sample) { return dataset_->Get(sample, scratch); });
  }

  absl::StatusOr<ImageExample> GetAugmented(const AugmentKey& key,
                                            absl::Span<uint8_t> scratch) const override {
    return First(key.sample, [&](int64_t sample) {
      return dataset_->GetAugmented({key.seed, key.epoch, sample}, scratch);
    });
  }

 private:
  template <typename Read>
  absl::StatusOr<ImageExample> First(int64_t index, const Read& read) const {
    int64_t sample = index;
    while (true) {
      absl::StatusOr<ImageExample> example = read(sample);
      if (!absl::IsDataLoss(example.status())) return example;
      const absl::Status noted = Note(sample, example.status());
      if (!noted.ok()) return noted;
      sample = (sample + 1) % size();
      if (sample == index) return example;  // none can be read
    }
  }

  absl::Status Note(int64_t sample, const absl::Status& why) const {
    int64_t number = 0;
    {
      MutexLock lock(&mutex_);
      if (damaged_.count(sample) > 0) return absl::OkStatus();
      number = static_cast<int64_t>(damaged_.size()) + 1;
      if (number <= options_.most) damaged_.insert(sample);
    }
    if (number > options_.most) {
      return absl::DataLossError(absl::StrCat("--skip_damaged: expected at most ", options_.most,
                                              " damaged files, found one more: ", why.message()));
    }
    if (options_.say != nullptr) {
      options_.say(
          absl::StrCat("passed over damaged file ", number, " of at most ", options_.most,
                       ", in whose place comes the next one that can be read: ", why.message()));
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<const ImageDataset> dataset_;
  const SkipDamagedOptions options_;
  mutable Mutex mutex_;
  mutable std::set<int64_t> damaged_ ABSL_GUARDED_BY(mutex_);
};

class Checker {
 public:
  explicit Checker(const ImageDataset& dataset) : dataset_(dataset) {}

  void Work() {
    std::vector<uint8_t> scratch(dataset_.shape().bytes());
    for (int64_t index = next_++; index < dataset_.size(); index = next_++) {
      const absl::StatusOr<std::string> warning = dataset_.Inspect(index, absl::MakeSpan(scratch));
      if (warning.ok() && warning->empty()) continue;
      MutexLock lock(&mutex_);
      if (warning.ok()) {
        warnings_[index] = absl::StrCat(dataset_.name(index), ": ", *warning);
      } else {
        unreadable_[index] = std::string(warning.status().message());
      }
    }
  }

  SampleReport Report() {
    MutexLock lock(&mutex_);
    SampleReport report;
    for (auto& [index, line] : unreadable_) report.unreadable.push_back(std::move(line));
    for (auto& [index, line] : warnings_) report.warnings.push_back(std::move(line));
    return report;
  }

 private:
  const ImageDataset& dataset_;
  std::atomic<int64_t> next_{0};
  Mutex mutex_;
  std::map<int64_t, std::string> unreadable_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, std::string> warnings_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const ImageDataset> SkipDamaged(std::shared_ptr<const ImageDataset> dataset,
                                                SkipDamagedOptions options) {
  return std::make_shared<const SkippingDataset>(std::move(dataset), std::move(options));
}

absl::StatusOr<std::shared_ptr<const ImageDataset>> OpenDataset(absl::string_view spec, Split split,
                                                                const DatasetOptions& more) {
  absl::string_view pixels = spec;
  const bool sized = absl::ConsumePrefix(&pixels, "synthetic:") && !pixels.empty();
  if (spec == "synthetic" || sized) {
    SyntheticDataset::Options options;
    if (sized && (!absl::SimpleAtoi(pixels, &options.pixels) || options.pixels < 8 ||
                  options.pixels > 1024 || options.pixels % 2 != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "data '", spec, "': expected synthetic:PIXELS with an even number from 8 to 1024"));
    }
    options.seed = more.seed;
    options.split = split;
    return std::make_shared<const SyntheticDataset>(options);
  }
  absl::string_view directory = spec;
  if (absl::ConsumePrefix(&directory, "cifar10:") && !directory.empty()) {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<Cifar10> dataset, Cifar10::Open(directory, split));
    return std::shared_ptr<const ImageDataset>(std::move(dataset));
  }
  directory = spec;
  if (absl::ConsumePrefix(&directory, "imagefolder:") && !directory.empty()) {
    ImageFolderOptions images = more.images;
    images.list_irregular_files |= more.skip_damaged > 0;
    GS_ASSIGN_OR_RETURN(std::shared_ptr<const ImageDataset> dataset,
                        ImageFolder::Open(directory, split, images));
    if (more.skip_damaged == 0) return dataset;
    return SkipDamaged(std::move(dataset), {more.skip_damaged, more.say});
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown data '", spec,
                   "': expected synthetic, synthetic:PIXELS, cifar10:DIR or imagefolder:DIR"));
}

absl::StatusOr<SampleReport> CheckSamples(const ImageDataset& dataset, int threads) {
  Checker checker(dataset);
  std::vector<std::thread> pool;
  absl::Status started;
  for (int i = 0; i < threads && started.ok(); ++i) {
    try {
      const RefusableThreads refusable;
      pool.emplace_back([&checker] { checker.Work(); });
    } catch (const std::exception& e) {
      started = absl::ResourceExhaustedError(
          absl::StrCat("reading data: cannot start a thread: ", e.what()));
    }
  }
  for (std::thread& thread : pool) thread.join();
  // Fewer threads do it too.
  if (pool.empty()) return started;
  return checker.Report();
}

}  // namespace gradsync
