#include "core/links/lost_stream.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/errors.h"

namespace gradsync {

absl::Status LostStream(absl::string_view own, absl::string_view peer, absl::string_view address,
                        absl::string_view stream, const absl::Status& status) {
  if (PatienceWith(status) > absl::ZeroDuration()) return CutLink(own, peer, status);
  const bool tells = !status.ok() && status.code() != absl::StatusCode::kCancelled;
  // A peer that knows better than that it is gone itself says so.
  const absl::string_view told = FromCulprit(status.message());
  if (tells && BeginsWithCulprit(told)) return absl::Status(status.code(), told);
  return absl::Status(tells ? status.code() : absl::StatusCode::kUnavailable,
                      absl::StrCat(peer, " at ", address, " lost: ", stream, " ended: ",
                                   status.ok() ? "closed by the peer" : status.message()));
}

}  // namespace gradsync
