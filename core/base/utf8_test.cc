#include "core/base/utf8.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Characters of one to four bytes.
constexpr char kText[] = "a\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80";

TEST(Utf8Test, CharactersHaveTheirBytes) {
  absl::string_view text = kText;
  for (const size_t bytes : {1, 2, 3, 4}) {
    EXPECT_EQ(CharacterBytes(text), bytes);
    text.remove_prefix(bytes);
  }
  EXPECT_TRUE(text.empty());
  // Cut off, a lone continuation, too long a form, a surrogate, beyond the last character.
  for (const char* bytes : {"\xc3", "\xe2\x82", "\x80", "\xff", "\xc0\xaf", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xe2\x82x"}) {
    EXPECT_EQ(CharacterBytes(bytes), 0u) << bytes;
  }
}

TEST(Utf8Test, WhatIsUtf8AndFitsStaysWhatItIs) {
  EXPECT_EQ(AsUtf8("", 3), "");
  EXPECT_EQ(AsUtf8(kText, 10), kText);
  EXPECT_EQ(AsUtf8("abc", 3), "abc");
  EXPECT_EQ(AsUtf8(absl::string_view("\0", 1), 3), std::string(1, '\0'));
}

TEST(Utf8Test, BytesOfNoCharacterAreReplaced) {
  EXPECT_EQ(AsUtf8("a\xffz", 9), absl::StrCat("a", kReplacementCharacter, "z"));
  EXPECT_EQ(AsUtf8("\xe2\x82", 9), absl::StrCat(kReplacementCharacter, kReplacementCharacter));
}

TEST(Utf8Test, WhatDoesNotFitEndsBehindAWholeCharacter) {
  EXPECT_EQ(AsUtf8(kText, 9), "a\xc3\xbc\xe2\x82\xac...");
  EXPECT_EQ(AsUtf8(kText, 8), "a\xc3\xbc...");
  EXPECT_EQ(AsUtf8(kText, 6), "a\xc3\xbc...");
  EXPECT_EQ(AsUtf8(kText, 5), "a...");
  EXPECT_EQ(AsUtf8(kText, 3), "...");
  EXPECT_EQ(AsUtf8("abcd", 3), "...");
  EXPECT_EQ(AsUtf8("\xff\xff", 5), "...");
}

TEST(Utf8Test, EscapedTextIsOneLineOfCharactersAndStaysDistinct) {
  EXPECT_EQ(EscapedAsUtf8("Stra\xc3\x9f"
                          "e"),
            "Stra\xc3\x9f"
            "e");
  EXPECT_EQ(EscapedAsUtf8("Stra\xdf"
                          "e"),
            "Stra\\xdfe");
  EXPECT_EQ(EscapedAsUtf8("a\nb\x7f"), "a\\x0ab\\x7f");
  EXPECT_EQ(EscapedAsUtf8("abcdefgh", 6), "abc...");
  EXPECT_EQ(EscapedAsUtf8(""), "");
}

}  // namespace
}  // namespace gradsync
