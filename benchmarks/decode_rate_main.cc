// How many samples of an image folder one core makes in a second of its time. Started by
// benchmarks/decode_bench, not by people: answers each line "WHAT SECONDS" on stdin with a rate.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/program/flags.h"
#include "worker/data/augment.h"
#include "worker/data/decode_image.h"
#include "worker/data/image_folder.h"

namespace gradsync {
namespace {

// Makes the sample of an image's index.
using MakeSample = std::function<absl::Status(int64_t epoch, int64_t index)>;

class Rates {
 public:
  static absl::StatusOr<Rates> Open(const std::string& folder) {
    Rates rates;
    for (const bool scaled : {false, true}) {
      ImageFolderOptions options;
      options.scaled_decoding = scaled;
      GS_ASSIGN_OR_RETURN(rates.folders_[scaled],
                          ImageFolder::Open(folder, Split::kTrain, options));
    }
    const ImageFolder& images = *rates.folders_[0];
    rates.augmenter_ = std::make_unique<Augmenter>(images.shape(), AugmentationOf(images));
    rates.pixels_.resize(images.shape().bytes());
    rates.values_.resize(images.shape().bytes());
    return rates;
  }

  absl::StatusOr<double> Measure(const std::string& what, absl::Duration time) {
    GS_ASSIGN_OR_RETURN(const MakeSample make, Maker(what));
    const int64_t images = folders_[0]->size();
    // Of this process, so that others on the same core do no harm.
    const absl::Duration begin = ProcessCpuTime();
    int64_t made = 0;
    while (ProcessCpuTime() - begin < time) {
      GS_RETURN_IF_ERROR(make(next_ / images, next_ % images));
      ++next_;
      ++made;
    }
    return static_cast<double>(made) / absl::ToDoubleSeconds(ProcessCpuTime() - begin);
  }

 private:
  absl::StatusOr<MakeSample> Maker(const std::string& what) {
    if (what == "decode")
      return MakeSample([this](int64_t, int64_t index) { return Decode(index); });
    for (const bool scaled : {false, true}) {
      const std::string suffix = scaled ? "_scaled" : "_full";
      if (what == "train" + suffix) {
        return MakeSample([this, scaled](int64_t epoch, int64_t index) {
          return Normalise(
              folders_[scaled]->GetAugmented({1, epoch, index}, absl::MakeSpan(pixels_)));
        });
      }
      if (what == "evaluate" + suffix) {
        return MakeSample([this, scaled](int64_t, int64_t index) {
          return Normalise(folders_[scaled]->Get(index, absl::MakeSpan(pixels_)));
        });
      }
    }
    return absl::InvalidArgumentError(absl::StrCat("cannot measure ", what));
  }

  absl::Status Normalise(const absl::StatusOr<ImageExample>& example) {
    if (!example.ok()) return example.status();
    augmenter_->Evaluate(example->pixels, values_.data());
    return absl::OkStatus();
  }

  absl::Status Decode(int64_t index) const {
    std::ifstream file(folders_[0]->path(index), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return DecodeImage(bytes, {}).status();
  }

  std::unique_ptr<ImageFolder> folders_[2];  // decoded in full, and scaled
  std::unique_ptr<Augmenter> augmenter_;
  std::vector<uint8_t> pixels_;
  std::vector<float> values_;
  int64_t next_ = 0;
};

absl::Status Answer(const std::string& folder) {
  GS_ASSIGN_OR_RETURN(Rates rates, Rates::Open(folder));
  std::string what;
  for (double seconds; std::cin >> what >> seconds;) {
    GS_ASSIGN_OR_RETURN(const double rate, rates.Measure(what, absl::Seconds(seconds)));
    std::printf("%.3f\n", rate);
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();
  const std::vector<std::string> folder =
      gradsync::ParseFlagsOrExit(argc, argv, {"decode_rate FOLDER: started by decode_bench."});
  const absl::Status status = folder.size() == 1
                                  ? gradsync::Answer(folder[0])
                                  : absl::InvalidArgumentError("expected one folder");
  if (!status.ok()) std::fprintf(stderr, "decode_rate: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
