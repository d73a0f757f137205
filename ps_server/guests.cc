#include "ps_server/guests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gradsync {

absl::Status Guests::Enter(const std::shared_ptr<FrameStream>& stream) {
  if (guests_.size() >= kMost) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has ", guests_.size(),
                     " streams that have not said hello, and takes no more"));
  }
  guests_.push_back({stream.get(), stream, MonotonicTime::Now()});
  return absl::OkStatus();
}

void Guests::Leave(const FrameStream* stream) {
  const auto found = std::find_if(guests_.begin(), guests_.end(),
                                  [&](const Guest& guest) { return guest.stream == stream; });
  if (found != guests_.end()) guests_.erase(found);
}

std::vector<std::shared_ptr<FrameStream>> Guests::TakeLate(absl::Duration patience) {
  const MonotonicTime latest = MonotonicTime::Now() - patience;
  std::vector<std::shared_ptr<FrameStream>> late;
  auto next = guests_.begin();
  for (; next != guests_.end() && next->since <= latest; ++next) {
    if (auto stream = next->alive.lock()) late.push_back(std::move(stream));
  }
  guests_.erase(guests_.begin(), next);
  return late;
}

}  // namespace gradsync
