#include "base/local_address.h"

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(LocalAddressTest, TheRouteToALoopbackAddressIsLoopback) {
  EXPECT_EQ(LocalAddress("127.0.0.1:29500", "").value(), "127.0.0.1");
  EXPECT_EQ(LocalAddress("localhost:0", "").value(), "127.0.0.1");
  EXPECT_EQ(LocalAddress("", "").value(), "127.0.0.1");
}

TEST(LocalAddressTest, AnInterfaceHasItsAddress) {
  EXPECT_EQ(LocalAddress("", "lo").value(), "127.0.0.1");
  EXPECT_EQ(LocalAddress("10.1.2.3:1", "lo").value(), "127.0.0.1");
}

TEST(LocalAddressTest, AnUnknownInterfaceIsAnErrorThatNamesTheKnown) {
  const absl::Status status = LocalAddress("127.0.0.1:1", "nosuch0").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nosuch0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lo (127.0.0.1)"));
}

TEST(LocalAddressTest, AnUnknownHostIsAnErrorThatNamesIt) {
  const absl::Status status = LocalAddress("no-such-host.invalid:1", "").status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-host.invalid"));
  EXPECT_TRUE(absl::IsInvalidArgument(LocalAddress("nonsense", "").status()));
}

TEST(LocalAddressTest, OwnNameLeadsToAnAddressThatOthersCanUseIfThereIsOne) {
  char name[256] = "";
  ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
  const absl::StatusOr<std::string> address = LocalAddress(absl::StrCat(name, ":1"), "");
  if (!address.ok()) GTEST_SKIP() << "this host does not know its own name: " << address.status();
  EXPECT_THAT(*address, Not(StartsWith("127.0.1.")));
}

}  // namespace
}  // namespace gradsync
