#include "worker/data/skip_damaged.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"

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

}  // namespace

std::shared_ptr<const ImageDataset> SkipDamaged(std::shared_ptr<const ImageDataset> dataset,
                                                SkipDamagedOptions options) {
  return std::make_shared<const SkippingDataset>(std::move(dataset), std::move(options));
}

}  // namespace gradsync
