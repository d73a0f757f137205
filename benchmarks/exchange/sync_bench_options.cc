#include "benchmarks/exchange/sync_bench_options.h"

#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/ranks/rank_spec.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr int kMostRanks = 256;
constexpr int64_t kFactor = 2;

absl::StatusOr<std::vector<int64_t>> Sizes(const SyncBenchOptions& options) {
  std::vector<int64_t> sizes;
  const bool sweep =
      !options.min_bytes.empty() || !options.max_bytes.empty() || options.factor != 0;
  if (!options.bytes.empty() && sweep) {
    return FlagError("bytes", "nothing beside -b, -e and -f", absl::StrJoin(options.bytes, ","));
  }
  if (!sweep) {
    const std::vector<std::string> usual = {"4KiB", "256KiB", "25MiB", "102.4MB"};
    for (const std::string& text : options.bytes.empty() ? usual : options.bytes) {
      GS_ASSIGN_OR_RETURN(sizes.emplace_back(), ParseSize("bytes", text));
    }
    return sizes;
  }
  const std::string first_text = options.min_bytes.empty() ? "4KiB" : options.min_bytes;
  GS_ASSIGN_OR_RETURN(const int64_t first, ParseSize("min_bytes", first_text));
  const std::string last_text = options.max_bytes.empty() ? first_text : options.max_bytes;
  GS_ASSIGN_OR_RETURN(const int64_t last, ParseSize("max_bytes", last_text));
  auto swept = GeometricSizes(first, last, options.factor == 0 ? kFactor : options.factor);
  if (!swept.ok()) return Named("max_bytes", swept.status());
  return swept;
}

absl::Status CheckNumbers(const SyncBenchOptions& options) {
  GS_RETURN_IF_ERROR(CheckAtLeast("iterations", 1, options.iterations));
  GS_RETURN_IF_ERROR(CheckAtLeast("warmup", 0, options.warmup));
  GS_RETURN_IF_ERROR(CheckConnections(options.connections));
  GS_RETURN_IF_ERROR(CheckTimeout(options.timeout));
  GS_RETURN_IF_ERROR(CheckBandwidths(options.bandwidths));
  if (options.emulate || options.bandwidths.size() == 1) return absl::OkStatus();
  if (options.bandwidths.empty()) return FlagError("emulate", "true without --bandwidth", "false");
  return FlagError("bandwidth", "one with --noemulate", absl::StrJoin(options.bandwidths, ","));
}

absl::StatusOr<JobSweep> SweepOf(const SyncBenchOptions& options) {
  SweepRules rules;
  rules.links = {Link::kAuto, Link::kGrpc, Link::kTcp,    Link::kShm,
                 Link::kGloo, Link::kNccl, Link::kCudaIpc};
  rules.on_hosts = !options.bandwidths.empty() && options.emulate;
  rules.sparse = false;
  rules.most_processes = kMostRanks;
  rules.ranks_own = true;
  rules.spare_topologies = true;
  return ParseJobSweep(options, rules);
}

// Adds one measurement of each of `jobs`, but for those that cannot have the weights that were
// asked for. Errors: those of CheckJobSpec().
absl::Status AddCases(const SyncBenchCase& common, const std::vector<PlacedJob>& jobs,
                      std::vector<SyncBenchCase>* cases) {
  for (const PlacedJob& job : jobs) {
    SyncBenchCase next = common;
    next.job = job;
    next.job.spec.connections = common.job.spec.connections;
    const std::vector<double>& weights = common.server_weights.weights;
    if (job.servers == 0) {
      next.server_weights = ServerWeights();
    } else if (!weights.empty()) {
      if (OwnersAreRanks(job.spec)) continue;
      next.job.spec.server_weights = static_cast<int>(weights.size());
    }
    GS_RETURN_IF_ERROR(CheckJobSpec(next.job.spec));
    next.exchange.codec = job.spec.codec;
    next.exchange.chunk_bytes = ChunkBytesOf(job, common.exchange.chunk_bytes);
    cases->push_back(std::move(next));
  }
  return absl::OkStatus();
}

// What all measurements have in common.
absl::StatusOr<SyncBenchCase> CommonCase(const SyncBenchOptions& options) {
  SyncBenchCase common;
  common.job.spec.connections = options.connections;
  common.device = options.device;
  common.exchange.iterations = options.iterations;
  common.exchange.warmup = options.warmup;
  common.exchange.timeout = options.timeout;
  GS_ASSIGN_OR_RETURN(common.exchange.bucket_bytes,
                      ParseSize("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(common.exchange.chunk_bytes, ParseChunkBytes(options.chunk_bytes));
  GS_ASSIGN_OR_RETURN(common.server_weights, ParseServerWeights(options.server_weights));
  return common;
}

}  // namespace

std::string Describe(const SyncBenchCase& bench_case) {
  return absl::StrCat(DescribeKind(bench_case.job.spec), DescribeServers(bench_case.job),
                      ", ranks ", bench_case.job.workers, ", ",
                      FormatBytes(bench_case.exchange.bytes));
}

absl::StatusOr<std::vector<SyncBenchCase>> ListCases(const SyncBenchOptions& options) {
  GS_ASSIGN_OR_RETURN(const JobSweep sweep, SweepOf(options));
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, Sizes(options));
  GS_ASSIGN_OR_RETURN(SyncBenchCase next, CommonCase(options));
  std::vector<SyncBenchCase> cases;
  std::vector<PlacedJob> all;
  const std::vector<std::string> here = {""};
  for (const std::string& bandwidth : options.bandwidths.empty() ? here : options.bandwidths) {
    next.bytes_per_second = ParseBandwidth(bandwidth).value_or(0);
    if (options.emulate) next.job.bandwidth = BandwidthName(bandwidth);
    for (int n : sweep.workers) {
      const std::vector<PlacedJob> jobs = ListJobs(sweep, n, next.job.bandwidth);
      all.insert(all.end(), jobs.begin(), jobs.end());
      next.exchange.world_size = n;
      for (int64_t bytes : sizes) {
        next.exchange.bytes = bytes;
        GS_RETURN_IF_ERROR(AddCases(next, jobs, &cases));
      }
    }
  }
  GS_RETURN_IF_ERROR(CheckAllOccur(sweep, all));
  return cases;
}

absl::Status CheckMemoryOf(const SyncBenchCase& bench_case) {
  const bool on_host = bench_case.device == "cpu";
  return CheckExchangeMemory(Describe(bench_case), bench_case.exchange, on_host);
}

absl::StatusOr<std::string> PaddedSizes(const std::vector<SyncBenchCase>& cases) {
  std::vector<std::string> padded;
  std::set<int64_t> seen;
  for (const SyncBenchCase& each : cases) {
    if (!seen.insert(each.exchange.bytes).second) continue;
    GS_ASSIGN_OR_RETURN(const Plan plan, ExchangePlan(each.exchange));
    if (plan.total_bytes() == each.exchange.bytes) continue;
    padded.push_back(absl::StrCat(each.exchange.bytes, " becomes ", plan.total_bytes()));
  }
  return absl::StrJoin(padded, ", ");
}

proto::RankSpec RankSpecOf(const SyncBenchCase& bench_case) {
  proto::RankSpec spec;
  SetJob(bench_case.job.spec, &spec);
  spec.mutable_job()->set_device(bench_case.device);
  const std::vector<double>& weights = bench_case.server_weights.weights;
  spec.mutable_job()->set_weights_by_host(bench_case.server_weights.by_host);
  spec.mutable_job()->mutable_server_weights()->Add(weights.begin(), weights.end());
  const ExchangeOptions& options = bench_case.exchange;
  proto::RankSpec::Exchange& exchange = *spec.mutable_exchange();
  exchange.set_bytes(options.bytes);
  exchange.set_bucket_bytes(options.bucket_bytes);
  exchange.set_chunk_bytes(options.chunk_bytes);
  exchange.set_iterations(options.iterations);
  exchange.set_warmup(options.warmup);
  return spec;
}

}  // namespace gradsync
