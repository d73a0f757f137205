// Tokens: text from a file, synthetic ones, and what --data makes of a spec.
#include "worker/data/tokens.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& bytes) {
  const std::string path = absl::StrCat(testing::TempDir(), "/text_", bytes.size());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string Alphabet(int64_t bytes) {
  std::string text;
  for (int64_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(i % 251));
  return text;
}

struct Sequence {
  std::vector<int64_t> inputs, targets;
};

Sequence Get(const TokenDataset& dataset, int64_t index) {
  const size_t length = static_cast<size_t>(dataset.context());
  Sequence sequence{std::vector<int64_t>(length, -1), std::vector<int64_t>(length, -1)};
  dataset.Get(index, absl::MakeSpan(sequence.inputs), absl::MakeSpan(sequence.targets));
  return sequence;
}

TEST(TextTest, SequencesFollowOneAnotherAndTargetsAreOneFurther) {
  const std::string spec = absl::StrCat("text:", FileOf(Alphabet(100)));
  const auto train = *OpenTokens(spec, Split::kTrain, 4);
  EXPECT_EQ(train->vocabulary(), 256);
  EXPECT_EQ(train->size(), 22);  // 90 bytes: 22 sequences and a byte that follows the last
  EXPECT_THAT(Get(*train, 0).inputs, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Get(*train, 0).targets, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(Get(*train, 21).inputs, ElementsAre(84, 85, 86, 87));
  EXPECT_THAT(Get(*train, 21).targets, ElementsAre(85, 86, 87, 88));
}

TEST(TextTest, TheLastTenthIsTheTestSplit) {
  const std::string spec = absl::StrCat("text:", FileOf(Alphabet(100)));
  const auto test = *OpenTokens(spec, Split::kTest, 4);
  EXPECT_EQ(test->size(), 2);
  EXPECT_THAT(Get(*test, 0).inputs, ElementsAre(90, 91, 92, 93));
  EXPECT_THAT(Get(*test, 1).targets, ElementsAre(95, 96, 97, 98));
}

TEST(TextTest, BytesAbove127AreTokensToo) {
  std::string bytes(40, '\xff');
  const auto train = *OpenTokens(absl::StrCat("text:", FileOf(bytes)), Split::kTrain, 1);
  EXPECT_THAT(Get(*train, 3).inputs, ElementsAre(255));
}

// Memory of this process that is not a file's, in kB.
int64_t AnonymousMemory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t kilobytes = -1;
  while (status >> word) {
    if (word == "RssAnon:") status >> kilobytes;
  }
  return kilobytes;
}

// A text was read twice, once for each split, into the memory of each worker.
TEST(TextTest, ALongTextTakesNoMemoryOfTheProcess) {
  const std::string path = FileOf(Alphabet(1000));
  std::filesystem::resize_file(path, int64_t{1} << 30);  // of zeros that take no disk
  const int64_t before = AnonymousMemory();
  const auto train = *OpenTokens(absl::StrCat("text:", path), Split::kTrain, 64);
  const auto test = *OpenTokens(absl::StrCat("text:", path), Split::kTest, 64);
  EXPECT_EQ(Get(*train, 0).inputs[63], 63);
  EXPECT_EQ(Get(*test, test->size() - 1).targets[63], 0);
  const DataIdentity identity = train->identity();
  EXPECT_THAT(identity.what, "text of 1073741824 bytes");
  EXPECT_EQ(test->identity().ToString(), identity.ToString());
  EXPECT_LT(AnonymousMemory() - before, 64 << 10);
  std::filesystem::remove(path);
}

TEST(TextTest, AFileThatIsJustLongEnoughHasASequenceInEachSplit) {
  const std::string spec = absl::StrCat("text:", FileOf(Alphabet(50)));
  EXPECT_EQ((*OpenTokens(spec, Split::kTest, 4))->size(), 1);
  EXPECT_EQ((*OpenTokens(spec, Split::kTrain, 4))->size(), 11);
  const absl::Status status = OpenTokens(spec, Split::kTrain, 5).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--data: expected text of at least 60 bytes with --gpt_context=5"),
                    HasSubstr("of 50 bytes")));
}

TEST(TextTest, AnEmptyFileAMissingOneAndAFolderAreNamed) {
  const std::string empty = FileOf("");
  EXPECT_THAT(std::string(OpenTokens("text:" + empty, Split::kTrain, 1).status().message()),
              HasSubstr(empty + " of 0 bytes"));
  const absl::Status missing = OpenTokens("text:/no/such/file", Split::kTrain, 1).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/no/such/file does not exist"));
  EXPECT_THAT(
      std::string(OpenTokens("text:" + testing::TempDir(), Split::kTrain, 1).status().message()),
      HasSubstr("a folder, expected a regular file"));
}

TEST(SyntheticTokensTest, AreAFunctionOfSeedSplitAndIndex) {
  const auto a = *OpenTokens("synthetic", Split::kTrain, 32, 1);
  const auto b = *OpenTokens("synthetic", Split::kTrain, 32, 1);
  const auto other_seed = *OpenTokens("synthetic", Split::kTrain, 32, 2);
  const auto test = *OpenTokens("synthetic", Split::kTest, 32, 1);
  EXPECT_EQ(Get(*a, 7).inputs, Get(*b, 7).inputs);
  EXPECT_NE(Get(*a, 7).inputs, Get(*a, 8).inputs);
  EXPECT_NE(Get(*a, 7).inputs, Get(*other_seed, 7).inputs);
  EXPECT_NE(Get(*a, 7).inputs, Get(*test, 7).inputs);
}

// What a model can learn: the pairs of both splits are the same, and three in four follow them.
TEST(SyntheticTokensTest, MostTokensAreFollowedByTheOneThatUsuallyFollows) {
  const auto train = *OpenTokens("synthetic", Split::kTrain, 64, 3);
  const auto test = *OpenTokens("synthetic", Split::kTest, 64, 3);
  std::map<int64_t, std::map<int64_t, int>> followed;
  for (int64_t i = 0; i < 2000; ++i) {
    const Sequence s = Get(*train, i);
    for (size_t t = 0; t < s.inputs.size(); ++t) ++followed[s.inputs[t]][s.targets[t]];
    for (size_t t = 1; t < s.inputs.size(); ++t) ASSERT_EQ(s.inputs[t], s.targets[t - 1]);
  }
  ASSERT_EQ(followed.size(), 256u);
  std::map<int64_t, int64_t> usual;
  for (const auto& [token, counts] : followed) {
    for (const auto& [next, count] : counts) {
      if (usual.count(token) == 0 || count > counts.at(usual[token])) usual[token] = next;
    }
  }
  int64_t hits = 0, all = 0;
  for (int64_t i = 0; i < 200; ++i) {
    const Sequence s = Get(*test, i);
    for (size_t t = 0; t < s.inputs.size(); ++t) {
      hits += usual[s.inputs[t]] == s.targets[t];
      ++all;
    }
  }
  EXPECT_NEAR(static_cast<double>(hits) / static_cast<double>(all), 0.75, 0.02);
}

TEST(OpenTokensTest, AnotherSpecOrContextIsNamedWithWhatExists) {
  for (const std::string spec : {"cifar10:/x", "text:", "synthetic:64", ""}) {
    EXPECT_THAT(
        std::string(OpenTokens(spec, Split::kTrain, 8).status().message()),
        HasSubstr("--data: expected tokens, text:FILE or synthetic, found \"" + spec + "\""));
  }
  EXPECT_THAT(std::string(OpenTokens("synthetic", Split::kTrain, 0).status().message()),
              HasSubstr("--gpt_context: expected at least 1, found \"0\""));
}

}  // namespace
}  // namespace gradsync
