#include "core/links/member_stream.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/host_port.h"
#include "core/base/monotonic_time.h"
#include "core/base/process_resources.h"

namespace gradsync {
namespace {

// As part of kUntilTheGroupKnows, for what the host says itself.
constexpr absl::Duration kProbe = absl::Milliseconds(500);

absl::Status WhyNot(const absl::Status& late, const std::string& address) {
  const MonotonicTime begin = MonotonicTime::Now();
  const bool answers = HostAccepts(address, kProbe);
  const absl::Duration patience = kUntilTheGroupKnows - (MonotonicTime::Now() - begin);
  if (!answers) return Suspicion(late, patience);
  return Suspicion(
      absl::ResourceExhaustedError(absl::StrCat("its host answers, it does not: ", late.message())),
      patience);
}

}  // namespace

absl::StatusOr<std::shared_ptr<FrameStream>> ConnectToMember(
    StreamLink& link, const std::string& address, int connection, std::shared_ptr<FrameSink> sink,
    Deadline deadline, absl::Duration failure_timeout, const std::function<bool()>& is_member) {
  for (;;) {
    const Deadline limit = std::min(deadline, Deadline::In(failure_timeout));
    const bool lacked = !HasFreeDescriptor();
    auto stream = link.Connect(address, connection, sink, limit);
    if (stream.ok() || !absl::IsDeadlineExceeded(stream.status()) || deadline.passed()) {
      return stream;
    }
    // Who comes back late was not running, nor, perhaps, was the peer.
    const bool late = MonotonicTime::Now() - limit.time() > PatientDeadline::kLate;
    const bool lacks = !HasFreeDescriptor();
    if (lacks && (lacked || is_member())) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no file descriptors left in this process: ", stream.status().message()));
    }
    if (!late && is_member()) return WhyNot(stream.status(), address);
  }
}

absl::Status NoConnection(absl::string_view name, const absl::Status& why) {
  const absl::Duration patience = PatienceWith(why);
  const bool own = absl::IsResourceExhausted(why) && patience <= absl::ZeroDuration();
  return Suspicion(Annotate(absl::StrCat(own ? "no connection to " : "", name), why), patience);
}

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
