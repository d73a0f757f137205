#include "core/base/host_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace gradsync {

std::string HostIdentity::Key() const { return absl::StrCat(boot_id, "/", network_namespace); }

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
  char hostname[256] = "";
  if (gethostname(hostname, sizeof(hostname) - 1) == 0) identity.hostname = hostname;
  return identity;
}

}  // namespace gradsync
