#include "worker/data/open_dataset.h"

#include <sys/stat.h>

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
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/errors.h"
#include "core/base/mutex.h"
#include "core/base/status_macros.h"
#include "core/base/thread.h"
#include "worker/data/cifar10.h"
#include "worker/data/image_folder.h"
#include "worker/data/synthetic_dataset.h"

namespace gradsync {
namespace {

// What begins a --data flag, and what follows.
constexpr std::pair<absl::string_view, absl::string_view> kForms[] = {
    {"synthetic:", "a number of pixels"},
    {"cifar10:", "a folder"},
    {"imagefolder:", "a folder"},
    {"text:", "a file"}};

bool IsFolder(const std::string& path) {
  struct stat about;
  return stat(absl::StrCat(path, "/.").c_str(), &about) == 0;
}

bool HasCifar10(absl::string_view folder) {
  struct stat about;
  return stat(absl::StrCat(folder, "/data_batch_1.bin").c_str(), &about) == 0 ||
         stat(absl::StrCat(folder, "/cifar-10-batches-bin").c_str(), &about) == 0;
}

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
      if (sample == index) {
        return absl::DataLossError(
            absl::StrCat("--skip_damaged: none of the ", size(),
                         " files can be read; the last one: ", example.status().message()));
      }
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

// Errors: INVALID_ARGUMENT for `form` with a folder of class folders, before other flags are
// refused for not being of its kind.
absl::Status CheckNoImageFolder(absl::string_view form, absl::string_view spec) {
  const std::string path(spec.substr(form.size()));
  if ((form != "cifar10:" && form != "text:") || HasCifar10(path) || !IsFolder(path + "/train")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--data: expected ", form == "text:" ? "a text file" : "the files of CIFAR-10",
                   ", found ", path, ", which holds class folders in ", path,
                   "/train; did you mean --data=imagefolder:", path, "?"));
}

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

absl::Status CheckDataForm(absl::string_view spec) {
  if (spec == "synthetic") return absl::OkStatus();
  const std::string lower = absl::AsciiStrToLower(spec);
  std::string hint;
  for (const auto& [form, rest] : kForms) {
    const absl::string_view given = spec.substr(0, form.size());
    if (given == form && spec.size() > form.size()) return CheckNoImageFolder(form, spec);
    if (given == form) {
      return FlagError("data", absl::StrCat(rest, " after \"", form, "\""), spec);
    }
    const bool meant = absl::StartsWith(lower, form) ||
                       absl::StartsWith(lower, absl::StrCat(absl::StripSuffix(form, ":"), "="));
    if (meant && spec.size() > form.size()) {
      hint = absl::StrCat(form, spec.substr(form.size()));
    }
  }
  struct stat about;
  if (hint.empty() && !spec.empty() && stat(std::string(spec).c_str(), &about) == 0) {
    const bool folder = IsFolder(std::string(spec));
    hint = absl::StrCat(HasCifar10(spec) ? "cifar10:" : folder ? "imagefolder:" : "text:", spec);
  }
  const absl::Status status = FlagError(
      "data", "synthetic, synthetic:PIXELS, cifar10:DIR, imagefolder:DIR or text:FILE", spec);
  if (hint.empty()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(status.message(), "; did you mean --data=", hint, "?"));
}

absl::StatusOr<std::shared_ptr<const ImageDataset>> OpenDataset(absl::string_view spec, Split split,
                                                                const DatasetOptions& more) {
  GS_RETURN_IF_ERROR(CheckDataForm(spec));
  absl::string_view pixels = spec;
  const bool sized = absl::ConsumePrefix(&pixels, "synthetic:");
  if (spec == "synthetic" || sized) {
    SyntheticDataset::Options options;
    if (sized && (!absl::SimpleAtoi(pixels, &options.pixels) || options.pixels < 8 ||
                  options.pixels > 1024 || options.pixels % 2 != 0)) {
      return FlagError("data", "synthetic:PIXELS with an even number from 8 to 1024", spec);
    }
    options.seed = more.seed;
    options.split = split;
    return std::make_shared<const SyntheticDataset>(options);
  }
  absl::string_view directory = spec;
  if (absl::ConsumePrefix(&directory, "cifar10:")) {
    GS_ASSIGN_OR_RETURN(std::unique_ptr<Cifar10> dataset, Cifar10::Open(directory, split));
    return std::shared_ptr<const ImageDataset>(std::move(dataset));
  }
  directory = spec;
  if (absl::ConsumePrefix(&directory, "imagefolder:")) {
    ImageFolderOptions images = more.images;
    images.list_irregular_files |= more.skip_damaged > 0;
    GS_ASSIGN_OR_RETURN(std::shared_ptr<const ImageDataset> dataset,
                        ImageFolder::Open(directory, split, images));
    if (more.skip_damaged == 0) return dataset;
    return SkipDamaged(std::move(dataset), {more.skip_damaged, more.say});
  }
  return FlagError("data", "images, not text", spec);
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
