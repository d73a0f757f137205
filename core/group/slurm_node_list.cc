#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/base/status_macros.h"
#include "core/group/launch_environment.h"

namespace gradsync {
namespace {

constexpr size_t kMaxHosts = 65536;  // as many as a job has workers

absl::Status Error(absl::string_view found) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected host names like gpu[003-005,012],x1 (at most ", kMaxHosts,
                   "), found \"", found, "\""));
}

bool ParseNumber(absl::string_view digits, int64_t* number) {
  return !digits.empty() && digits.find_first_not_of("0123456789") == digits.npos &&
         absl::SimpleAtoi(digits, number);
}

// "003-005,012" gives 003, 004, 005, 012.
absl::StatusOr<std::vector<std::string>> ExpandRanges(absl::string_view ranges) {
  std::vector<std::string> result;
  for (absl::string_view range : absl::StrSplit(ranges, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    const bool single = range.find('-') == range.npos;
    int64_t first = 0;
    int64_t last = 0;
    if (!ParseNumber(ends.first, &first) ||
        !ParseNumber(single ? ends.first : ends.second, &last) || last < first ||
        static_cast<size_t>(last - first) >= kMaxHosts) {
      return Error(range);
    }
    for (int64_t number = first; number <= last; ++number) {
      const std::string digits = absl::StrCat(number);
      const size_t width = ends.first.size();
      result.push_back(absl::StrCat(
          std::string(width > digits.size() ? width - digits.size() : 0, '0'), digits));
    }
    if (result.size() > kMaxHosts) return Error(ranges);
  }
  return result;
}

// One name with any number of brackets.
absl::StatusOr<std::vector<std::string>> ExpandName(absl::string_view name) {
  std::vector<std::string> result = {""};
  absl::string_view rest = name;
  while (!rest.empty()) {
    const size_t open = rest.find('[');
    const absl::string_view literal = rest.substr(0, open);
    for (const char c : literal) {
      if (!absl::ascii_isalnum(c) && c != '-' && c != '.' && c != '_') return Error(name);
    }
    for (std::string& each : result) absl::StrAppend(&each, literal);
    if (open == rest.npos) break;
    const size_t close = rest.find(']', open);
    if (close == rest.npos) return Error(name);
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> numbers,
                        ExpandRanges(rest.substr(open + 1, close - open - 1)));
    if (result.size() * numbers.size() > kMaxHosts) return Error(name);
    std::vector<std::string> longer;
    for (const std::string& each : result) {
      for (const std::string& number : numbers) longer.push_back(each + number);
    }
    result = std::move(longer);
    rest.remove_prefix(close + 1);
  }
  return result;
}

// Splits at commas that are not in brackets.
std::vector<absl::string_view> SplitNames(absl::string_view list) {
  std::vector<absl::string_view> names;
  size_t begin = 0;
  int depth = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') ++depth;
    if (list[i] == ']') --depth;
    if (list[i] == ',' && depth == 0) {
      names.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  names.push_back(list.substr(begin));
  return names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandSlurmNodeList(absl::string_view list) {
  std::vector<std::string> hosts;
  for (absl::string_view name : SplitNames(list)) {
    if (name.empty()) return Error(list);
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> expanded, ExpandName(name));
    hosts.insert(hosts.end(), expanded.begin(), expanded.end());
    if (hosts.size() > kMaxHosts) return Error(list);
  }
  return hosts;
}

}  // namespace gradsync
