#include "benchmarks/exchange/nccl_tests.h"

#include <unistd.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "benchmarks/exchange/sync_bench_report.h"
#include "benchmarks/ranks/run_program.h"
#include "join/nccl_settings.h"

namespace gradsync {
namespace {

constexpr size_t kColumns = 13;
constexpr size_t kInPlace = 9;  // the first column of it

// "# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22809".
void ParseVersions(absl::string_view line, NcclTestsResult* result) {
  if (!absl::StrContains(line, "nccl-tests version ")) return;
  absl::string_view before;
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    int version = 0;
    if (before == "version") result->version = std::string(word);
    if (absl::ConsumePrefix(&word, "nccl-library=") && absl::SimpleAtoi(word, &version)) {
      result->nccl_version = NcclVersionName(version);
    }
    before = word;
  }
}

}  // namespace

absl::StatusOr<NcclTestsResult> ParseNcclTests(absl::string_view output) {
  NcclTestsResult result;
  absl::optional<std::string> row;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    ParseVersions(line, &result);
    // Libraries may print what they like besides.
    if (line.empty() || line[0] < '0' || line[0] > '9') continue;
    if (row.has_value()) {
      return absl::DataLossError(
          absl::StrCat("all_reduce_perf: expected one line of results, found another: ", line));
    }
    row = std::string(line);
  }
  if (!row.has_value()) return absl::DataLossError("all_reduce_perf: found no line of results");
  const std::vector<std::string> words = absl::StrSplit(*row, ' ', absl::SkipEmpty());
  if (words.size() < kColumns || words[2] != "float" || words[3] != "sum" ||
      !absl::SimpleAtod(words[0], &result.bytes) ||
      !absl::SimpleAtod(words[kInPlace], &result.time_us) || !(result.time_us > 0) ||
      !absl::SimpleAtod(words[kInPlace + 1], &result.algbw_gb_per_s) ||
      !absl::SimpleAtod(words[kInPlace + 2], &result.busbw_gb_per_s) ||
      !absl::SimpleAtod(words[kInPlace + 3], &result.wrong)) {
    return absl::DataLossError(absl::StrCat(
        "all_reduce_perf: expected size, count, float, sum, root and twice time, algbw, busbw and "
        "wrong elements, found \"",
        *row, "\""));
  }
  return result;
}

std::vector<std::string> NcclTestsCommand(const std::string& program,
                                          const SyncBenchCase& bench_case, double bytes) {
  const std::string size = absl::StrCat(static_cast<int64_t>(bytes));
  return {program,
          "-b",
          size,
          "-e",
          size,
          "-g",
          absl::StrCat(bench_case.exchange.world_size),
          "-n",
          absl::StrCat(bench_case.exchange.iterations),
          "-w",
          absl::StrCat(bench_case.exchange.warmup),
          "-d",
          "float",
          "-o",
          "sum",
          "-c",
          "1",
          "-z",
          "1"};
}

bool ComparesWithNcclTests(const SyncBenchCase& bench_case) {
  const JobSpec& spec = bench_case.job.spec;
  return spec.topology == Topology::kRing && spec.link == Link::kNccl &&
         spec.update == UpdateSite::kWorker && bench_case.device == "cuda";
}

absl::StatusOr<proto::Run> MeasureNcclTests(const std::string& program,
                                            const SyncBenchCase& bench_case,
                                            const std::atomic<int>* interrupt,
                                            proto::Run* measured) {
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        "nccl-tests: not installed; tools/setup --cuda --peers builds its all_reduce_perf");
  }
  std::string output;
  const absl::Status ran = RunProgram(NcclTestsCommand(program, bench_case, measured->bytes()),
                                      bench_case.exchange.timeout, &output, interrupt);
  if (absl::IsCancelled(ran)) return ran;
  const absl::StatusOr<NcclTestsResult> parsed = ParseNcclTests(output);
  // It fails, too, where it has found wrong elements and said how many.
  if (!ran.ok() && (!parsed.ok() || parsed->wrong == 0)) {
    return absl::Status(ran.code(), absl::StrCat("nccl-tests: ", ran.message()));
  }
  GS_ASSIGN_OR_RETURN(const NcclTestsResult result, parsed);
  proto::Run run;
  run.set_library("nccl_tests");
  run.set_topology(measured->topology());
  run.set_link(LinkName(Link::kNccl));
  run.set_update(UpdateSiteName(UpdateSite::kWorker));
  run.set_compression(CodecName(Codec()));
  run.set_workers(measured->workers());
  run.set_bytes(result.bytes);
  run.set_bucket_bytes(result.bytes);
  run.set_steps(bench_case.exchange.iterations);
  run.set_time_us_p50(result.time_us);
  run.set_algbw_gb_per_s(result.algbw_gb_per_s);
  run.mutable_busbw_gb_per_s()->set_number_value(result.busbw_gb_per_s);
  run.set_wrong(result.wrong);
  run.set_device(measured->device());
  run.set_nccl_version(result.nccl_version);
  run.set_nccl_asked(measured->nccl_asked());
  run.set_nccl_chosen("unknown");
  run.set_settings(absl::StrCat("nccl-tests ", result.version,
                                ", one process, in place, one operation, mean time"));
  AddPeerRatio(run, measured);
  return run;
}

}  // namespace gradsync
