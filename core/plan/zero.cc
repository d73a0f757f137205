#include "core/plan/zero.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/errors.h"
#include "core/plan/consistency.h"

namespace gradsync {

absl::Status CheckZero(int zero, const JobSpec& spec) {
  const auto refuse = [zero](absl::string_view expected) {
    return FlagError("zero", expected, absl::StrCat(zero));
  };
  if (zero < 0 || zero > kMostZero) return refuse(absl::StrCat("0 to ", kMostZero));
  if (zero >= 1 && spec.link == Link::kGloo) {
    return refuse("0 with --link=gloo, which has no reduce-scatter");
  }
  if (zero >= 2 && !spec.consistency.bulk()) {
    return refuse(absl::StrCat("0 or 1 with --consistency=", ConsistencyName(spec.consistency)));
  }
  if (zero >= 2 && BetweenGpus(spec.link)) {
    return refuse(absl::StrCat("0 or 1 with --link=", LinkName(spec.link),
                               ", whose owners keep on GPUs what is theirs (or --link=grpc or "
                               "shm)"));
  }
  if (zero < 3) return absl::OkStatus();
  if (spec.topology == Topology::kLocal) {
    return refuse("0 to 2 with --topology=local, where nobody else is");
  }
  if (spec.codec.compresses()) return refuse("0 to 2 with --compression");
  return absl::OkStatus();
}

}  // namespace gradsync
