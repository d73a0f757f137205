#include "core/base/rate.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gradsync {

absl::StatusOr<double> ParseBandwidth(absl::string_view text) {
  constexpr std::pair<absl::string_view, double> kUnits[] = {{"kbit", 1e3 / 8}, {"mbit", 1e6 / 8},
                                                             {"gbit", 1e9 / 8}, {"kbps", 1e3 / 8},
                                                             {"mbps", 1e6 / 8}, {"gbps", 1e9 / 8}};
  const size_t end = text.find_first_not_of("0123456789.");
  const std::string name =
      end == absl::string_view::npos ? "" : absl::AsciiStrToLower(text.substr(end));
  double value = 0;
  for (const auto& [unit, bytes] : kUnits) {
    if (unit == name && absl::SimpleAtod(text.substr(0, end), &value) && value > 0) {
      return value * bytes;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("expected a bandwidth, such as 400mbit or 10gbit, found \"", text, "\""));
}

std::string BandwidthName(absl::string_view text) {
  if (!ParseBandwidth(text).ok()) return std::string(text);
  std::string name = absl::AsciiStrToLower(text);
  constexpr absl::string_view kOther = "bps";
  if (absl::EndsWith(name, kOther)) name.replace(name.size() - kOther.size(), kOther.size(), "bit");
  return name;
}

}  // namespace gradsync
