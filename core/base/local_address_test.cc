#include "core/base/local_address.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gradsync {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

LocalAddressOptions At(const std::string& master, const std::string& interface = "") {
  LocalAddressOptions options;
  options.master = master;
  options.interface = interface;
  return options;
}

std::string AddressAt(const std::string& master, const std::string& interface = "") {
  return FindLocalAddress(At(master, interface)).value().address;
}

TEST(LocalAddressTest, TheRouteToALoopbackAddressIsLoopback) {
  EXPECT_EQ(AddressAt("127.0.0.1:29500"), "127.0.0.1");
  EXPECT_EQ(AddressAt("localhost:0"), "127.0.0.1");
  EXPECT_EQ(AddressAt(""), "127.0.0.1");
}

// It was said to be reachable by other hosts.
TEST(LocalAddressTest, IPv4WrittenAsIPv6IsIPv4) {
  const absl::StatusOr<LocalAddresses> found = FindStoreAddresses(At("[::ffff:127.0.0.1]:7011"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->listen, ElementsAre("127.0.0.1:7011"));
  EXPECT_EQ(AddressAt("[::ffff:127.0.0.1]:7011"), "127.0.0.1");
}

// Where /etc/hosts has no localhost it was not found.
TEST(LocalAddressTest, NamesBelowLocalhostAreThisHostWhereverTheyComeFrom) {
  for (const char* master : {"localhost:7001", "a.localhost:7001"}) {
    const absl::StatusOr<LocalAddresses> store = FindStoreAddresses(At(master));
    ASSERT_TRUE(store.ok()) << store.status();
    EXPECT_THAT(store->listen, testing::Contains("127.0.0.1:7001"));
    EXPECT_EQ(AddressAt(master), "127.0.0.1");
  }
}

TEST(LocalAddressTest, AnInterfaceHasItsAddress) {
  EXPECT_EQ(AddressAt("", "lo"), "127.0.0.1");
  EXPECT_EQ(AddressAt("10.1.2.3:1", "lo"), "127.0.0.1");
}

TEST(LocalAddressTest, AnUnknownInterfaceIsAnErrorThatNamesTheKnown) {
  const absl::Status status = FindLocalAddress(At("127.0.0.1:1", "nosuch0")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("nosuch0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lo (127.0.0.1)"));
}

// It ended the job at once, though a cluster may publish names after it has started the processes.
TEST(LocalAddressTest, AnUnknownHostIsLookedUpUntilTheDeadlineAndSaysSoOnce) {
  LocalAddressOptions options = At("no-such-host.invalid:1");
  options.deadline = Deadline::In(absl::Milliseconds(1200));
  std::vector<std::string> notices;
  options.notice = [&notices](const std::string& text) { notices.push_back(text); };
  const absl::Status status = FindLocalAddress(options).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(notices, ElementsAre(HasSubstr("no-such-host.invalid")));
}

TEST(LocalAddressTest, WhatIsNeitherANameNorAnAddressIsRefusedAtOnce) {
  for (const std::string master : {"nonsense", "10.0.0.256:1", "[fe80::1%nosuch0]:1"}) {
    LocalAddressOptions options = At(master);
    options.deadline = Deadline::Never();
    EXPECT_TRUE(absl::IsInvalidArgument(FindLocalAddress(options).status())) << master;
    EXPECT_TRUE(absl::IsInvalidArgument(FindStoreAddresses(options).status())) << master;
  }
}

// The route to 127.0.1.1 has the source 127.0.0.1, where the store then listened alone.
TEST(LocalAddressTest, TheStoreListensAtTheAddressItself) {
  const absl::StatusOr<LocalAddresses> found = FindStoreAddresses(At("127.0.1.1:7001"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->listen, ElementsAre("127.0.1.1:7001"));
  EXPECT_EQ(found->store, "127.0.1.1:7001");
}

TEST(LocalAddressTest, AnotherHostsAddressIsRefusedOnRankZero) {
  // For documentation (RFC 5737).
  const absl::Status status = FindStoreAddresses(At("203.0.113.9:7001")).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("found \"203.0.113.9\""));
}

TEST(LocalAddressTest, AnOpenStoreWhoseNameIsNotFoundListensEverywhere) {
  LocalAddressOptions options = At("no-such-host.invalid:7001");
  const absl::StatusOr<LocalAddresses> found = FindStoreAddresses(options);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_THAT(found->listen, ElementsAre("[::]:7001"));
  EXPECT_NE(found->address, "");
}

TEST(LocalAddressTest, OwnNameLeadsToAnAddressThatOthersCanUseIfThereIsOne) {
  char name[256] = "";
  ASSERT_EQ(gethostname(name, sizeof(name) - 1), 0);
  EXPECT_THAT(AddressAt(absl::StrCat(name, ":1")), Not(StartsWith("127.0.1.")));
}

}  // namespace
}  // namespace gradsync
