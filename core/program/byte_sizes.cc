#include "core/program/byte_sizes.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace gradsync {
namespace {

struct Unit {
  absl::string_view name;
  double bytes;
};

constexpr double kKi = 1024;
constexpr double kMi = kKi * kKi;
constexpr double kGi = kKi * kMi;
constexpr int64_t kLargest = int64_t{1} << 40;

constexpr Unit kByteUnits[] = {{"", 1},     {"b", 1},     {"k", kKi},   {"m", kMi},
                               {"g", kGi},  {"kib", kKi}, {"mib", kMi}, {"gib", kGi},
                               {"kb", 1e3}, {"mb", 1e6},  {"gb", 1e9}};

// Number times unit, or a negative number when the text is neither.
template <size_t kUnits>
double Parse(absl::string_view text, const Unit (&units)[kUnits]) {
  const size_t end = text.find_first_not_of("0123456789.");
  const absl::string_view number = text.substr(0, end);
  const std::string name =
      end == absl::string_view::npos ? "" : absl::AsciiStrToLower(text.substr(end));
  double value = 0;
  if (!absl::SimpleAtod(number, &value)) return -1;
  for (const Unit& unit : units) {
    if (unit.name == name) return value * unit.bytes;
  }
  return -1;
}

absl::Status Wrong(absl::string_view expected, absl::string_view found) {
  return absl::InvalidArgumentError(absl::StrCat("expected ", expected, ", found \"", found, "\""));
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  const double bytes = Parse(text, kByteUnits);
  // 102.4 * 1e6 is not exact in binary.
  const double whole = std::round(bytes);
  if (!(whole >= 1) || whole > kLargest || std::abs(bytes - whole) > 1e-9 * whole) {
    return Wrong("a number of bytes, such as 4096, 4KiB, 25MiB or 102.4MB", text);
  }
  return static_cast<int64_t>(whole);
}

std::string FormatBytes(int64_t bytes) {
  const auto multiple_of = [bytes](int64_t unit) { return bytes >= unit && bytes % unit == 0; };
  if (multiple_of(int64_t{1} << 30)) return absl::StrCat(bytes >> 30, "GiB");
  if (multiple_of(int64_t{1} << 20)) return absl::StrCat(bytes >> 20, "MiB");
  if (bytes >= 1000000 && bytes < 10000000000 && bytes % 10000 == 0)
    return absl::StrCat(bytes / 1e6, "MB");
  if (multiple_of(int64_t{1} << 10)) return absl::StrCat(bytes >> 10, "KiB");
  return absl::StrCat(bytes);
}

bool AbslParseFlag(absl::string_view text, ByteSize* size, std::string*) {
  const absl::StatusOr<int64_t> bytes = text == "0" ? 0 : ParseBytes(text);
  if (bytes.ok()) size->bytes = *bytes;
  return bytes.ok();  // what is expected is said by core/program/flags.h, as of all types
}

std::string AbslUnparseFlag(ByteSize size) { return FormatBytes(size.bytes); }

absl::StatusOr<std::vector<int64_t>> GeometricSizes(int64_t first, int64_t last, int64_t factor) {
  if (first > last) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a first size of at most the last, ", last, ", found ", first));
  }
  if (factor < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected a factor of at least 2, found ", factor));
  }
  std::vector<int64_t> sizes;
  for (int64_t bytes = first; bytes <= last; bytes *= factor) {
    sizes.push_back(bytes);
    if (bytes > last / factor) break;
  }
  return sizes;
}

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
