#include "core/base/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace gradsync {

namespace {

// Two containers' users with one number need not be one: uid_map of user_namespaces(7) says who they are
// outside.
uint64_t UserOutside() {
  const uint64_t user = geteuid();
  std::ifstream map("/proc/self/uid_map");
  uint64_t inside = 0, outside = 0, count = 0;
  while (map >> inside >> outside >> count) {
    if (user >= inside && user - inside < count) return outside + (user - inside);
  }
  return user;
}

}  // namespace

std::string HostIdentity::Key() const {
  return absl::StrCat(boot_id, "/", network_namespace, "/", user);
}

absl::StatusOr<HostIdentity> ReadHostIdentity() {
  constexpr char kBootId[] = "/proc/sys/kernel/random/boot_id";
  constexpr char kNetwork[] = "/proc/self/ns/net";
  HostIdentity identity;
  std::ifstream file(kBootId);
  if (!std::getline(file, identity.boot_id) || identity.boot_id.empty()) {
    return absl::UnavailableError(
        absl::StrCat(kBootId, ": expected the kernel's boot id, found nothing"));
  }
  struct stat network = {};
  if (stat(kNetwork, &network) != 0) {
    return absl::UnavailableError(absl::StrCat(
        kNetwork, ": expected this process's network namespace: ", std::strerror(errno)));
  }
  identity.network_namespace = network.st_ino;
  identity.user = UserOutside();
  char hostname[256] = "";
  if (gethostname(hostname, sizeof(hostname) - 1) == 0) identity.hostname = hostname;
  return identity;
}

}  // namespace gradsync
