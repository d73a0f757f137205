// Images of many sizes in class folders, as torchvision's ImageFolder reads them:
//
//   DIR/train/CLASS/....jpg    training (.jpg, .jpeg, .png, nested folders too)
//   DIR/val/CLASS/....jpg      test; DIR/test if there is no DIR/val
//
// Files are listed once, and read and decoded whenever a sample is wanted.
#ifndef GRADSYNC_WORKER_DATA_IMAGE_FOLDER_H_
#define GRADSYNC_WORKER_DATA_IMAGE_FOLDER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/dataset.h"
#include "worker/data/list_images.h"

namespace gradsync {

enum class ImageCrop {
  // ImageNet's recipe. Training: RandomResizedCrop and a flip with probability 1/2. Evaluation: the
  // shorter side resized to image_size * 256 / 224, rounded down, and the centre of that. ImageNet's
  // mean and deviation.
  kResized,
  // CIFAR-10's, for images that are small already: the shorter side resized to image_size if it is
  // another, and the centre of that; training crops and flips as Augmenter (worker/data/augment.h)
  // does. CIFAR-10's mean and deviation.
  kPadded,
};

struct ImageFolderOptions {
  int image_size = 224;  // the samples' height and width, at least 1
  ImageCrop crop = ImageCrop::kResized;
  // JPEGs of which a sample needs no more than an eighth, a quarter or half are decoded at that
  // size. False: always in full, which costs time and gives the very bytes of Pillow and
  // torchvision.
  bool scaled_decoding = true;
  // Lists a pipe, socket or device that has an image's name too; reading it fails as reading a
  // damaged file does. False: the folder is refused.
  bool list_irregular_files = false;
};

// One split. Immutable; thread-safe. Random draws are a pure function of (seed, epoch, index).
class ImageFolder : public ImageDataset {
 public:
  // Lists the files of `split`. Labels are those of the training folder's classes in the order of
  // their names, for the test split too. Blocks while it reads folders.
  //
  // Errors: those of ImageList::Read(); INVALID_ARGUMENT if the test split has a class that the
  // training split does not have, or, naming it, for an image that is no regular file.
  static absl::StatusOr<std::unique_ptr<ImageFolder>> Open(absl::string_view directory, Split split,
                                                           const ImageFolderOptions& options);

  int64_t size() const override { return list_.size(); }
  int classes() const override { return static_cast<int>(classes_.size()); }
  ImageShape shape() const override { return {3, options_.image_size, options_.image_size}; }

  // The sample for evaluation. Errors: DATA_LOSS naming the file, for one that is damaged, of
  // another kind than its name says, or gone.
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override;

  bool augments() const override { return options_.crop == ImageCrop::kResized; }
  absl::StatusOr<ImageExample> GetAugmented(const AugmentKey& key,
                                            absl::Span<uint8_t> scratch) const override;
  Normalisation normalisation() const override;
  std::string name(int64_t index) const override;
  DataIdentity identity() const override;
  std::vector<std::string> remarks() const override;
  absl::StatusOr<std::string> Inspect(int64_t index, absl::Span<uint8_t> scratch) const override;

  std::string path(int64_t index) const { return list_.path(index); }

 private:
  ImageFolder(ImageList list, std::vector<std::string> classes, std::vector<int> labels,
              Split split, const ImageFolderOptions& options)
      : list_(std::move(list)),
        classes_(std::move(classes)),
        labels_(std::move(labels)),
        split_(split),
        options_(options) {}

  absl::StatusOr<ImageExample> Evaluate(int64_t index, absl::Span<uint8_t> scratch,
                                        std::string* warning) const;
  int label(int64_t index) const { return labels_[list_.label(index)]; }

  const ImageList list_;
  const std::vector<std::string> classes_;  // of the training split
  const std::vector<int> labels_;           // by the list's: it may lack classes
  const Split split_;
  const ImageFolderOptions options_;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_IMAGE_FOLDER_H_
