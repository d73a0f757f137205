#include "core/base/sha256.h"

#include <string>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(Sha256Test, HashesTheExamplesOfTheStandard) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Sha256Test, AnotherGoesOnWithTheStateOfTheFirst) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 23);
  for (size_t cut : {0, 1, 63, 64, 65, 128, 500, 1000}) {
    Sha256 first;
    first.Update(text.data(), cut);
    Sha256 second;
    second.Update("forgotten", 9);
    ASSERT_TRUE(second.Restore(first.state()));
    second.Update(text.data() + cut, text.size() - cut);
    EXPECT_EQ(second.HexDigest(), Sha256Hex(text)) << cut;
  }
}

TEST(Sha256Test, BytesThatAreNoStateChangeNothing) {
  Sha256 hash;
  hash.Update("abc", 3);
  EXPECT_FALSE(hash.Restore(""));
  EXPECT_FALSE(hash.Restore(hash.state() + "x"));
  EXPECT_EQ(hash.HexDigest(), Sha256Hex("abc"));
}

}  // namespace
}  // namespace gradsync
