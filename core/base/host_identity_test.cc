#include "core/base/host_identity.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace gradsync {
namespace {

TEST(HostIdentityTest, OneProcessIsOnOneHost) {
  const HostIdentity one = ReadHostIdentity().value();
  const HostIdentity two = ReadHostIdentity().value();
  EXPECT_EQ(one.Key(), two.Key());
  EXPECT_EQ(one.boot_id.size(), 36u);
  EXPECT_NE(one.network_namespace, 0u);
  EXPECT_FALSE(one.hostname.empty());
}

TEST(HostIdentityTest, AnotherNetworkNamespaceIsAnotherHost) {
  const std::string key = ReadHostIdentity().value().Key();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) _exit(2);
    _exit(ReadHostIdentity().value().Key() == key ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "namespaces may not be created here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Ranks of two users were to share memory by --link=auto, and refused each other.
TEST(HostIdentityTest, AnotherUserIsAnotherHost) {
  const std::string key = ReadHostIdentity().value().Key();
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (setuid(12345) != 0) _exit(2);
    prctl(PR_SET_DUMPABLE, 1);  // as after exec()
    _exit(ReadHostIdentity().value().Key() == key ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "this namespace has no other user";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace gradsync
