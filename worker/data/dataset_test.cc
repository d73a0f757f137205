#include "worker/data/dataset.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(DataIdentityTest, DifferentPartsAreCountedOneByOne) {
  const std::string one = ContentTag("one"), two = ContentTag("two");
  EXPECT_EQ(one.size(), DataIdentity::kTagBytes);
  EXPECT_EQ(DifferentParts({"x", one + two}, {"x", one + two}), 0u);
  EXPECT_EQ(DifferentParts({"x", one + two}, {"x", two + two}), 1u);
  EXPECT_EQ(DifferentParts({"x", one + two}, {"x", two + one}), 2u);
  EXPECT_EQ(DifferentParts({"x", one + two}, {"x", one}), 1u);
  EXPECT_EQ(DifferentParts({"x", ""}, {"x", ""}), 0u);
  EXPECT_EQ(DataIdentity({"x", ""}).ToString(), "x");
  EXPECT_THAT(DataIdentity({"x", one}).ToString(), HasSubstr("x, contents "));
}

TEST(DataIdentityTest, ALongTextIsSampledFromItsFirstByteToItsLast) {
  std::string text(40 << 20, 'a');
  const std::string tag = SampledTag(text);
  for (const size_t at : {size_t{0}, text.size() / 2, text.size() - 1}) {
    std::string other = text;
    // Wider than what lies between two blocks.
    for (size_t i = 0; i < (size_t{200} << 10); ++i) other[at < i ? i : at - i] = 'b';
    EXPECT_NE(SampledTag(other), tag) << at;
  }
  EXPECT_NE(SampledTag(text.substr(1)), tag);
  EXPECT_NE(SampledTag("a"), SampledTag("b"));
  EXPECT_NE(SampledTag(""), SampledTag("a"));
}

TEST(DataIdentityTest, NamesAreListedInOneLine) {
  EXPECT_EQ(ListNames({"ant", "bee"}, 4), "ant, bee");
  EXPECT_EQ(ListNames({"ant", "bee", "cat"}, 2), "ant, bee and 1 more");
  EXPECT_EQ(ListNames({}, 2), "");
  EXPECT_THAT(ListNames({"a\nb\xff"}, 2), Not(HasSubstr("\n")));
}

TEST(DataIdentityTest, TheKindOfDataHasNoPath) {
  EXPECT_EQ(KindOfData("imagefolder:/a/b:c"), "imagefolder");
  EXPECT_EQ(KindOfData("text:x"), "text");
  EXPECT_EQ(KindOfData("synthetic"), "synthetic");
  EXPECT_EQ(KindOfData("synthetic:32"), "synthetic");
  EXPECT_EQ(KindOfData("synthetic:16"), "synthetic:16");
}

}  // namespace
}  // namespace gradsync
