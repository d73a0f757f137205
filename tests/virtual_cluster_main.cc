// Runs jobs in virtual time, one for each seed: ring or servers, workers, store and detection as
// they are, over a network, threads and a clock that the seed decides; see docs/internals/testing.md.
//
//   bazel run -c opt //tests:virtual_cluster -- --seeds=100000
//   bazel run -c opt //tests:virtual_cluster -- --seed=4711     one job, with all that happens

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "core/base/monotonic_time.h"
#include "tests/virtual_job.h"

namespace gradsync {
namespace {

struct Row {
  int64_t jobs = 0, struck = 0, named = 0, unnamed = 0;
  absl::Duration longest;  // to notice, in the middle of training
};

int RunOne(uint64_t seed) {
  VirtualJobOptions options = DrawVirtualJob(seed);
  options.verbose = true;
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed),
              DescribeVirtualJob(options).c_str());
  const VirtualJobResult result = RunVirtualJob(options);
  std::printf("digest %016llx, %lld switches\n", static_cast<unsigned long long>(result.digest),
              static_cast<long long>(result.switches));
  std::printf("%s\n", result.complaint.empty() ? "as it should be" : result.complaint.c_str());
  return result.complaint.empty() ? 0 : 1;
}

int RunMany(uint64_t first, uint64_t seeds, uint64_t most_complaints) {
  const MonotonicTime start = MonotonicTime::Now();
  std::map<std::string, Row> rows;
  uint64_t complaints = 0;
  uint64_t jobs = 0;
  for (; jobs < seeds && complaints < most_complaints; ++jobs) {
    const uint64_t seed = first + jobs;
    const VirtualJobOptions options = DrawVirtualJob(seed);
    const VirtualJobResult result = RunVirtualJob(options);
    Row& row = rows[absl::StrCat(options.servers == 0 ? "ring " : "ps   ",
                                 VirtualFaultName(options.fault))];
    ++row.jobs;
    row.struck += result.fault_happened;
    row.named += result.named;
    row.unnamed += result.unnamed;
    if (result.in_training) row.longest = std::max(row.longest, result.noticed);
    if (result.complaint.empty()) continue;
    std::printf("seed %llu (%s): %s\n", static_cast<unsigned long long>(seed),
                DescribeVirtualJob(options).c_str(), result.complaint.c_str());
    std::fflush(stdout);
    ++complaints;
  }
  const absl::Duration time = MonotonicTime::Now() - start;
  std::printf("%-14s %9s %9s %9s %9s  %s\n", "fault", "jobs", "struck", "named", "unnamed",
              "longest to notice");
  for (const auto& [name, row] : rows) {
    std::printf("%-14s %9lld %9lld %9lld %9lld  %.3f s\n", name.c_str(),
                static_cast<long long>(row.jobs), static_cast<long long>(row.struck),
                static_cast<long long>(row.named), static_cast<long long>(row.unnamed),
                absl::ToDoubleSeconds(row.longest));
  }
  std::printf("%llu seeds from %llu, %llu complaints, %.1f s\n",
              static_cast<unsigned long long>(jobs), static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(complaints), absl::ToDoubleSeconds(time));
  return complaints == 0 ? 0 : 1;
}

int Main(int argc, char** argv) {
  uint64_t seeds = 1000;
  uint64_t first = 1;
  uint64_t most_complaints = 10;
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    uint64_t seed = 0;
    const bool one = absl::ConsumePrefix(&flag, "--seed=");
    uint64_t* const value = one                                                ? &seed
                            : absl::ConsumePrefix(&flag, "--seeds=")           ? &seeds
                            : absl::ConsumePrefix(&flag, "--first_seed=")      ? &first
                            : absl::ConsumePrefix(&flag, "--most_complaints=") ? &most_complaints
                                                                               : nullptr;
    if (value == nullptr || !absl::SimpleAtoi(flag, value)) {
      const bool help = flag == "--help";
      std::fprintf(help ? stdout : stderr,
                   "%s: expected --seed=N, for one job and all that happens in it, or --seeds=N, "
                   "--first_seed=N and --most_complaints=N; found %s\n",
                   argv[0], argv[i]);
      return help ? 0 : 2;
    }
    if (one) return RunOne(seed);
  }
  return RunMany(first, seeds, most_complaints);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) { return gradsync::Main(argc, argv); }
