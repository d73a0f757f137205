#include "benchmarks/peer_libraries/standing_peer.h"

#include <unistd.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/deadline.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr absl::Duration kGlance = absl::Milliseconds(50);  // between looks at the interrupt

}  // namespace

absl::Status StandingPeer::TakeTurn(const std::string& turn, absl::Duration timeout,
                                    const std::atomic<int>* interrupt) {
  auto end = absl::MakeCleanup([this] {
    if (process_ != nullptr) process_->Kill();
    process_.reset();
  });
  if (process_ == nullptr) GS_RETURN_IF_ERROR(Start(timeout, interrupt));
  GS_RETURN_IF_ERROR(process_->WriteLine(turn));
  GS_RETURN_IF_ERROR(Await("done", timeout, interrupt));
  std::move(end).Cancel();
  return absl::OkStatus();
}

absl::Status StandingPeer::Start(absl::Duration timeout, const std::atomic<int>* interrupt) {
  if (access(installed_.c_str(), R_OK) != 0) {
    return absl::NotFoundError("not installed; tools/setup --peers installs it");
  }
  GS_ASSIGN_OR_RETURN(process_, InteractiveProcess::Start(command_, environment_));
  return Await("ready", timeout, interrupt);
}

absl::Status StandingPeer::Await(const std::string& answer, absl::Duration timeout,
                                 const std::atomic<int>* interrupt) {
  const Deadline deadline = Deadline::In(timeout);
  while (true) {
    const absl::StatusOr<std::string> line =
        process_->ReadLine(std::min(deadline, Deadline::In(kGlance)));
    if (interrupt != nullptr && *interrupt != 0) return absl::CancelledError("interrupted");
    if (line.ok()) {
      if (*line == answer) return absl::OkStatus();
      if (absl::StartsWith(*line, "cannot run")) return absl::AbortedError(*line);
      continue;
    }
    if (!absl::IsDeadlineExceeded(line.status()))
      return absl::AbortedError(line.status().message());
    if (deadline.passed()) {
      return absl::DeadlineExceededError(
          absl::StrCat("did not end within ", absl::FormatDuration(timeout)));
    }
  }
}

}  // namespace gradsync
