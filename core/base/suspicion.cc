#include "core/base/suspicion.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"

namespace gradsync {
namespace {

constexpr char kPayload[] = "gradsync/patience";  // milliseconds

}  // namespace

absl::Status Suspicion(absl::Status status, absl::Duration patience) {
  if (patience <= absl::ZeroDuration()) return status;
  status.SetPayload(kPayload, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(patience))));
  return status;
}

absl::Status Certain(absl::Status status) {
  status.ErasePayload(kPayload);
  return status;
}

absl::Duration PatienceWith(const absl::Status& status) {
  const absl::optional<absl::Cord> text = status.GetPayload(kPayload);
  int64_t milliseconds = 0;
  if (!text || !absl::SimpleAtoi(std::string(*text), &milliseconds)) return absl::ZeroDuration();
  return absl::Milliseconds(milliseconds);
}

absl::Status CutLink(absl::string_view from, absl::string_view to, const absl::Status& why) {
  std::string message = absl::StrCat("link ", from, " - ", to, ": ", why.message());
  if (absl::IsResourceExhausted(why)) {
    message = absl::StartsWith(why.message(), to) ? std::string(why.message())
                                                  : absl::StrCat(to, ": ", why.message());
  }
  return Suspicion(absl::UnavailableError(message), PatienceWith(why));
}

}  // namespace gradsync
