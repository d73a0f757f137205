#include "benchmarks/comparison/html_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "benchmarks/ranks/processes.h"

namespace gradsync {
namespace {

constexpr char kPython[] = "/usr/bin/python3";
constexpr absl::Duration kLimit = absl::Minutes(2);

}  // namespace

absl::Status WriteHtmlReport(const std::string& tool, const std::string& json,
                             const std::string& html) {
  const absl::Status status =
      RunProgram({kPython, tool, json, absl::StrCat("--out=", html)}, kLimit);
  return absl::Status(status.code(), absl::StripPrefix(status.message(), "report: "));
}

}  // namespace gradsync
