#include "core/base/errors.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"

namespace gradsync {
namespace {

// Takes the digits in front, if there are any.
bool ConsumeNumber(absl::string_view* text) {
  const size_t size =
      std::find_if_not(text->begin(), text->end(), absl::ascii_isdigit) - text->begin();
  text->remove_prefix(size);
  return size > 0;
}

bool IsWord(absl::string_view text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), absl::ascii_isspace);
}

}  // namespace

bool BeginsWithCulprit(absl::string_view message) {
  absl::ConsumePrefix(&message, "link ");
  if (absl::ConsumePrefix(&message, "rank ") || absl::ConsumePrefix(&message, "ranks ")) {
    return ConsumeNumber(&message) && (message.empty() || !absl::ascii_isalnum(message[0]));
  }
  return absl::ConsumePrefix(&message, "server ") && ConsumeNumber(&message) &&
         absl::StartsWith(message, " (");
}

absl::string_view FromCulprit(absl::string_view line) {
  constexpr int kPrefixes = 2;
  absl::string_view rest = line;
  for (int i = 0; i <= kPrefixes; ++i) {
    if (BeginsWithCulprit(rest)) return rest;
    const size_t colon = rest.find(": ");
    if (colon == absl::string_view::npos || !IsWord(rest.substr(0, colon))) break;
    rest.remove_prefix(colon + 2);
  }
  return line;
}

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
