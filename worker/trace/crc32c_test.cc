#include "worker/trace/crc32c.h"

#include <string>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

// Values of RFC 3720, appendix B.4, and the check value of the polynomial.
TEST(Crc32cTest, IsThatOfTheRfc) {
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
}

}  // namespace
}  // namespace gradsync
