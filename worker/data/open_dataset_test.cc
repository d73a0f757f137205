#include "worker/data/open_dataset.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Ten samples of one pixel, whose labels are their numbers; some fail.
class Numbers : public ImageDataset {
 public:
  explicit Numbers(std::set<int64_t> bad, absl::StatusCode code = absl::StatusCode::kDataLoss)
      : bad_(std::move(bad)), code_(code) {}
  int64_t size() const override { return 10; }
  int classes() const override { return 10; }
  ImageShape shape() const override { return {1, 1, 1}; }
  absl::StatusOr<ImageExample> Get(int64_t index, absl::Span<uint8_t> scratch) const override {
    if (bad_.count(index) > 0) return absl::Status(code_, absl::StrCat("bad ", index));
    return ImageExample{scratch.data(), static_cast<int>(index)};
  }

 private:
  const std::set<int64_t> bad_;
  const absl::StatusCode code_;
};

struct Skipping {
  explicit Skipping(std::shared_ptr<const ImageDataset> numbers, int64_t most)
      : dataset(SkipDamaged(std::move(numbers), {most, [this](absl::string_view line) {
                                                   said.push_back(std::string(line));
                                                 }})) {}

  absl::StatusOr<int> Label(int64_t index) const {
    uint8_t pixel = 0;
    const auto example = dataset->Get(index, absl::MakeSpan(&pixel, 1));
    const auto augmented = dataset->GetAugmented({7, 1, index}, absl::MakeSpan(&pixel, 1));
    EXPECT_EQ(example.ok(), augmented.ok());
    if (!example.ok()) return example.status();
    EXPECT_EQ(example->label, augmented->label);
    return example->label;
  }

  std::vector<std::string> said;
  std::shared_ptr<const ImageDataset> dataset;
};

TEST(SkipDamagedTest, TheNextReadableSampleComesInThePlaceOfADamagedOne) {
  const Skipping skipping(std::make_shared<Numbers>(std::set<int64_t>{3, 4, 9}), 3);
  EXPECT_EQ(skipping.dataset->size(), 10);
  std::vector<int> labels;
  for (int64_t i = 0; i < 10; ++i) labels.push_back(skipping.Label(i).value());
  EXPECT_THAT(labels, ElementsAre(0, 1, 2, 5, 5, 5, 6, 7, 8, 0));
  // Each is named once, however often it is wanted.
  EXPECT_THAT(skipping.said, ElementsAre(HasSubstr("file 1 of at most 3"), HasSubstr("bad 4"),
                                         HasSubstr("bad 9")));
}

TEST(SkipDamagedTest, OneDamagedSampleTooManyIsAnError) {
  const Skipping skipping(std::make_shared<Numbers>(std::set<int64_t>{3, 6}), 1);
  EXPECT_EQ(skipping.Label(6).value(), 7);
  EXPECT_EQ(skipping.Label(6).value(), 7);
  const absl::Status status = skipping.Label(3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--skip_damaged: expected at most 1 damaged files, found one more: bad 3"));
}

TEST(SkipDamagedTest, WhereNothingCanBeReadTheErrorIsThatOfASample) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < 10; ++i) all.insert(i);
  const Skipping skipping(std::make_shared<Numbers>(all), 100);
  const absl::Status status = skipping.Label(5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(StartsWith("--skip_damaged: none of the 10 files can be read"), EndsWith("bad 4")));
}

TEST(SkipDamagedTest, OtherErrorsAreNoDamage) {
  const Skipping skipping(
      std::make_shared<Numbers>(std::set<int64_t>{3}, absl::StatusCode::kResourceExhausted), 5);
  EXPECT_EQ(skipping.Label(3).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(skipping.said, IsEmpty());
}

TEST(CheckSamplesTest, EverySampleIsReadOnAnyNumberOfThreads) {
  const Numbers numbers({0, 5, 9});
  for (const int threads : {1, 3, 20}) {
    const auto report = CheckSamples(numbers, threads);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_THAT(report->unreadable, ElementsAre("bad 0", "bad 5", "bad 9"));
    EXPECT_THAT(report->warnings, IsEmpty());
  }
}

DatasetOptions Seeded(uint64_t seed) {
  DatasetOptions options;
  options.seed = seed;
  return options;
}

TEST(OpenDatasetTest, SyntheticNeedsNoFiles) {
  const auto train = OpenDataset("synthetic", Split::kTrain, Seeded(1));
  const auto test = OpenDataset("synthetic", Split::kTest, Seeded(1));
  ASSERT_TRUE(train.ok() && test.ok());
  EXPECT_EQ((*train)->size(), 50000);
  EXPECT_EQ((*test)->size(), 10000);
}

TEST(OpenDatasetTest, SyntheticImagesHaveTheSizeThatIsAskedFor) {
  const auto train = OpenDataset("synthetic:224", Split::kTrain, Seeded(1));
  ASSERT_TRUE(train.ok()) << train.status();
  EXPECT_EQ((*train)->shape().height, 224);
  EXPECT_EQ((*train)->shape().width, 224);
  std::vector<uint8_t> pixels((*train)->shape().bytes());
  ASSERT_TRUE((*train)->Get(49999, absl::MakeSpan(pixels)).ok());
  EXPECT_NE(pixels.front(), pixels.back());
  for (const char* spec :
       {"synthetic:7", "synthetic:33", "synthetic:1026", "synthetic:-8", "synthetic:big"}) {
    EXPECT_THAT(std::string(OpenDataset(spec, Split::kTrain).status().message()),
                HasSubstr("an even number from 8 to 1024"))
        << spec;
  }
}

TEST(OpenDatasetTest, Cifar10ErrorsNameTheDirectory) {
  const auto dataset = OpenDataset("cifar10:/no/such/place", Split::kTrain);
  EXPECT_EQ(dataset.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(dataset.status().message(), HasSubstr("/no/such/place"));
}

TEST(OpenDatasetTest, UnknownSpecListsWhatExists) {
  for (const char* spec :
       {"", "mnist", "cifar10", "cifar10:", "synthetic:", "imagefolder:", "CIFAR10:/x"}) {
    const auto dataset = OpenDataset(spec, Split::kTrain);
    EXPECT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_THAT(
        std::string(dataset.status().message()),
        AllOf(StartsWith("--data: expected "), HasSubstr(absl::StrCat("found \"", spec, "\""))))
        << spec;
  }
}

TEST(OpenDatasetTest, AFormThatWasForgottenIsNamed) {
  const std::string folder = testing::TempDir() + "/pictures";
  ASSERT_TRUE(mkdir(folder.c_str(), 0755) == 0 || errno == EEXIST);
  const std::string file = folder + "/words.txt";
  std::ofstream(file) << "words";
  const auto hint = [](absl::string_view spec) {
    const std::string message(CheckDataForm(spec).message());
    const size_t at = message.find("; did you mean ");
    return at == std::string::npos ? "" : message.substr(at + 15);
  };
  EXPECT_EQ(hint(folder), "--data=imagefolder:" + folder + "?");
  EXPECT_EQ(hint(file), "--data=text:" + file + "?");
  EXPECT_EQ(hint("ImageFolder:/x"), "--data=imagefolder:/x?");
  EXPECT_EQ(hint("Synthetic:32"), "--data=synthetic:32?");
  EXPECT_EQ(hint("imagefolder=/x"), "--data=imagefolder:/x?");
  EXPECT_EQ(hint("Text=/x"), "--data=text:/x?");
  EXPECT_EQ(hint("no/such/folder"), "");
  EXPECT_EQ(hint("imagefolder:"), "");
  std::ofstream(folder + "/data_batch_1.bin") << "";
  EXPECT_EQ(hint(folder), "--data=cifar10:" + folder + "?");
  EXPECT_TRUE(CheckDataForm("text:" + file).ok());
  EXPECT_TRUE(CheckDataForm("imagefolder:/no/such/place").ok());
}

}  // namespace
}  // namespace gradsync
