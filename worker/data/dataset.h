// Labelled images of one fixed size, by index, and what identifies a dataset. Start at OpenDataset
// (worker/data/open_dataset.h).

#ifndef GRADSYNC_WORKER_DATA_DATASET_H_
#define GRADSYNC_WORKER_DATA_DATASET_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gradsync {

// What a dataset is, apart from where it lies: two copies in different folders have the same
// identity. Ranks compare it before their first step, and a resumed job with its checkpoint's.
// Of one split.
struct DataIdentity {
  // In words, beginning with the kind as --data spells it: "imagefolder of 6 images in 2 classes
  // (ant, bee), names 1f3a5b7c9d0e2468". UTF-8 in one line, whatever bytes names have. The digest
  // is of all that decides which sample has which number and label.
  std::string what;
  // A digest of the samples' bytes, in parts of kTagBytes, each of one file or of all: as many
  // parts in each identity of equal `what`. Empty for data that are computed.
  std::string contents;

  static constexpr size_t kTagBytes = 8;

  // A digest of the names of all classes in their order; empty for data whose classes have none.
  std::string classes = {};
  // The classes of `contents`' parts, by number, where each is of one sample. Not kept in checkpoints.
  std::vector<int> labels = {};

  // Both in words.
  std::string ToString() const;
};

// How many of the parts of `contents` differ.
size_t DifferentParts(const DataIdentity& a, const DataIdentity& b);

// In how many classes of `now` all parts differ, of at least three, as where folders of classes were
// exchanged. `before` needs no labels.
int ExchangedClasses(const DataIdentity& before, const DataIdentity& now);

// DataIdentity::kTagBytes hexadecimal digits for these bytes.
std::string ContentTag(absl::string_view bytes);

// A tag of many bytes: of their number and all of them up to 16 MiB, and of 256 blocks of 64 KiB,
// evenly spread from the first byte to the last, where there are more. Reads what it looks at.
std::string SampledTag(absl::string_view bytes);

// The first `most` names and how many more there are: "ant, bee and 998 more". Bytes of a name that
// are no UTF-8 or no printable character are escaped.
std::string ListNames(const std::vector<std::string>& names, size_t most);

// The kind of data that a --data flag names, without its path: "imagefolder", "synthetic:16".
std::string KindOfData(absl::string_view spec);

enum class Split { kTrain, kTest };

// The size of every image of a dataset. Pixels are bytes, planar (CHW): one plane per channel, each
// plane row by row from the top.
struct ImageShape {
  int channels = 3;
  int height = 32;
  int width = 32;

  int64_t bytes() const { return int64_t{channels} * height * width; }
};

// One example. `pixels` points to ImageShape::bytes() bytes, either inside the dataset or in the
// scratch memory given to Get(), so it lives as long as the shorter-lived of the two.
struct ImageExample {
  const uint8_t* pixels = nullptr;
  int label = 0;  // In [0, ImageDataset::classes()).
};

// What the random choices of one image depend on.
struct AugmentKey {
  uint64_t seed = 0;
  int64_t epoch = 0;
  int64_t sample = 0;  // Index in the dataset.
};

// Of a dataset's pixel values in [0, 1], per channel: a model's input is their distance to `mean`
// in units of `deviation`. The defaults are CIFAR-10's.
struct Normalisation {
  std::array<float, 3> mean = {0.4914f, 0.4822f, 0.4465f};
  std::array<float, 3> deviation = {0.2023f, 0.1994f, 0.2010f};
};

// A dataset is immutable once opened: all methods are thread-safe, need no lock, and give the same
// bytes for the same index every time.
class ImageDataset {
 public:
  virtual ~ImageDataset() = default;

  virtual int64_t size() const = 0;
  virtual int classes() const = 0;
  virtual ImageShape shape() const = 0;

  // The example at `index`, in [0, size()); another index is a mistake of the caller. A dataset
  // that must decode or compute its pixels writes them into `scratch` (at least shape().bytes()
  // long) and returns a pointer to it; one that holds them returns a pointer to its own and leaves
  // `scratch` alone. Never waits for another process; may read a file.
  //
  // Errors: DATA_LOSS if the example cannot be read or decoded. The datasets held in memory
  // (synthetic, CIFAR-10) never fail here.
  virtual absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const = 0;

  // Whether the dataset has an augmentation of its own, which needs more of an image than Get()
  // gives: training then sees GetAugmented(), and crops and flips no more.
  virtual bool augments() const { return false; }

  // With augments(): the example of `key` as training sees it in that epoch, before anything is
  // normalised; otherwise as Get(). A pure function of the key.
  virtual absl::StatusOr<ImageExample> GetAugmented(const AugmentKey& key,
                                                    absl::Span<uint8_t> scratch) const {
    return Get(key.sample, scratch);
  }

  virtual Normalisation normalisation() const { return {}; }

  // What messages call a sample: "sample 7", or "image DIR/train/ant/1.jpg".
  virtual std::string name(int64_t index) const { return absl::StrCat("sample ", index); }

  // What the data are, wherever they lie. May read a part of them, and takes its time: to be asked
  // once. Nothing is known of a dataset that does not say it.
  virtual DataIdentity identity() const { return {}; }

  // What a user should know of the data before they are used, a line each: classes, files that are
  // passed over.
  virtual std::vector<std::string> remarks() const { return {}; }

  // Reads the sample whole, as Get() does. What is odd about it but does no harm, such as a warning
  // of the library that decodes it; "" for most. Errors: those of Get().
  virtual absl::StatusOr<std::string> Inspect(int64_t index, absl::Span<uint8_t> scratch) const {
    const absl::StatusOr<ImageExample> example = Get(index, scratch);
    if (!example.ok()) return example.status();
    return std::string();
  }
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_DATA_DATASET_H_
