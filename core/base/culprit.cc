#include "core/base/culprit.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

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

}  // namespace gradsync
