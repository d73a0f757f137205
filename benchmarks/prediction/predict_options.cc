#include "benchmarks/prediction/predict_options.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/flag_error.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "benchmarks/options/byte_sizes.h"
#include "benchmarks/options/flag_checks.h"
#include "plan/codec.h"
#include "plan/consistency.h"

namespace gradsync {
namespace {

constexpr int kMostWorkers = 4096;

bool ParseCount(absl::string_view text, int* count) {
  return absl::SimpleAtoi(text, count) && *count >= 1 && *count <= kMostWorkers;
}

absl::StatusOr<std::vector<int>> WorkerCounts(const std::vector<std::string>& texts) {
  const std::string expected =
      absl::StrCat("numbers from 1 to ", kMostWorkers, ", or such as 2..64");
  std::vector<int> counts;
  for (const std::string& text : texts) {
    const std::vector<std::string> ends = absl::StrSplit(text, "..");
    int first = 0, last = 0;
    if (ends.size() > 2 || !ParseCount(ends.front(), &first) || !ParseCount(ends.back(), &last) ||
        first > last) {
      return FlagError("workers", expected, text);
    }
    for (int count = first; count <= last; count *= 2) counts.push_back(count);
  }
  if (counts.empty()) return FlagError("workers", expected, "");
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

absl::Status CheckTime(absl::string_view flag, absl::Duration time) {
  if (time >= absl::ZeroDuration() && time < absl::InfiniteDuration()) return absl::OkStatus();
  return FlagError(flag, "at least 0", absl::FormatDuration(time));
}

absl::Status CheckNumbers(const PredictOptions& options) {
  for (const std::string& text : options.bandwidths) {
    const absl::StatusOr<double> rate = ParseBandwidth(text);
    if (!rate.ok()) return Named("bandwidth", rate.status());
  }
  if (options.bandwidths.empty()) return FlagError("bandwidth", "such as 10gbit", "");
  for (const std::string& text : options.compressions) {
    if (!ParseCodec(text).ok()) {
      return FlagError("compression", "some of none, fp16, bf16, topk:R", text);
    }
  }
  if (options.compressions.empty()) return FlagError("compression", "at least one", "");
  if (options.batch_size < 0 || options.batch_size > 1000000) {
    return FlagError("batch_size", "1 to 1000000, or 0", absl::StrCat(options.batch_size));
  }
  if (options.global_batch_size < 0) {
    return FlagError("global_batch_size", "at least 1", absl::StrCat(options.global_batch_size));
  }
  if (options.batch_size > 0 && options.global_batch_size > 0) {
    return FlagError("global_batch_size", "nothing beside --batch_size",
                     absl::StrCat(options.global_batch_size));
  }
  if (!(options.compute_scale > 0) || !std::isfinite(options.compute_scale)) {
    return FlagError("compute_scale", "more than 0", absl::StrCat(options.compute_scale));
  }
  if (!(options.rate_factor > 0 && options.rate_factor <= 1)) {
    return FlagError("rate_factor", "more than 0 and at most 1", absl::StrCat(options.rate_factor));
  }
  GS_RETURN_IF_ERROR(CheckTime("latency", options.latency));
  GS_RETURN_IF_ERROR(CheckTime("message_cost", options.message_cost));
  return CheckTime("step_overhead", options.step_overhead);
}

// What all jobs have in common.
absl::StatusOr<PredictedJob> CommonJob(const PredictOptions& options) {
  GS_RETURN_IF_ERROR(CheckNames("topologies", options.topologies, {"ring", "ps", "local"}));
  GS_RETURN_IF_ERROR(
      CheckNames("placement", options.placements, {"dedicated", "colocated", "mixed"}));
  GS_RETURN_IF_ERROR(CheckNames("update", options.updates, {"worker", "owner"}));
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  PredictedJob job;
  GS_ASSIGN_OR_RETURN(job.bucket_bytes, ParseSize("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(job.first_bucket_bytes,
                      ParseSize("first_bucket_bytes", options.first_bucket_bytes));
  GS_ASSIGN_OR_RETURN(job.chunk_bytes, ParseChunkBytes(options.chunk_bytes));
  job.batch_size = options.batch_size;
  job.compute_scale = options.compute_scale;
  job.constants.rate_factor = options.rate_factor;
  job.constants.latency = absl::ToDoubleSeconds(options.latency);
  job.constants.seconds_per_message = absl::ToDoubleSeconds(options.message_cost);
  job.constants.seconds_per_step = absl::ToDoubleSeconds(options.step_overhead);
  return job;
}

absl::Status CheckConsistencies(const PredictOptions& options) {
  if (options.consistencies.empty()) return FlagError("consistency", "at least one", "");
  for (const std::string& text : options.consistencies) {
    const absl::StatusOr<Consistency> consistency = ParseConsistency(text);
    if (!consistency.ok()) return FlagError("consistency", "some of bsp, ssp:S, asp", text);
    if (consistency->bulk()) continue;
    if (!Contains(options.topologies, "ps") || !Contains(options.updates, "owner")) {
      return FlagError("consistency", "bsp unless --topologies has ps and --update has owner",
                       text);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> Slowness(const std::string& straggler, int workers) {
  std::vector<double> slowness;
  if (straggler.empty()) return slowness;
  GS_ASSIGN_OR_RETURN(const Straggler parsed, Straggler::Parse(straggler));
  if (absl::StartsWith(straggler, "random")) {
    return FlagError("straggler", "RANK:FACTOR (a random one has no one step time)", straggler);
  }
  GS_RETURN_IF_ERROR(parsed.CheckWorkers(workers));
  for (int rank = 0; rank < workers; ++rank) slowness.push_back(parsed.Factor(rank, 0));
  return slowness;
}

bool Possible(const PredictedJob& job) {
  const bool bulk = job.consistency == "bsp";
  if (!bulk && (job.topology != "ps" || job.update != "owner" || job.compression != "none")) {
    return false;
  }
  const absl::StatusOr<Codec> codec = ParseCodec(job.compression);
  if (job.topology != "ps") return codec.ok() && !(codec->sparse() && job.topology == "ring");
  if (job.placement == "colocated") return job.servers <= job.workers;
  return job.placement != "mixed" || job.servers < job.workers;
}

bool Same(const PredictedJob& a, const PredictedJob& b) {
  return a.topology == b.topology && a.placement == b.placement && a.workers == b.workers &&
         a.servers == b.servers && a.update == b.update && a.compression == b.compression &&
         a.bandwidth == b.bandwidth && a.consistency == b.consistency;
}

// The jobs of one topology and number of workers.
absl::Status AddJobs(const PredictOptions& options, PredictedJob job,
                     std::vector<PredictedJob>* jobs) {
  const bool ps = job.topology == "ps";
  const std::vector<std::string> none = {""};
  for (const std::string& update : job.topology == "local" ? none : options.updates) {
    job.update = update.empty() ? "worker" : update;
    for (const std::string& compression : job.topology == "local" ? none : options.compressions) {
      job.compression = compression.empty() ? "none" : compression;
      for (const std::string& placement : ps ? options.placements : none) {
        job.placement = placement;
        for (const std::string& servers : ps ? options.servers : none) {
          if (ps) {
            GS_ASSIGN_OR_RETURN(job.servers, ServersOf(servers, job.workers));
          }
          for (const std::string& consistency : options.consistencies) {
            job.consistency = consistency.empty() ? "bsp" : consistency;
            const bool repeated = std::any_of(jobs->begin(), jobs->end(),
                                              [&](const auto& other) { return Same(other, job); });
            if (!repeated && Possible(job)) jobs->push_back(job);
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> ServersOf(const std::string& text, int workers) {
  absl::string_view rest = text;
  int number = 0;
  if (absl::ConsumePrefix(&rest, "n")) {
    if (rest.empty()) return workers;
    if (absl::ConsumePrefix(&rest, "/") && ParseCount(rest, &number)) {
      return std::max(1, workers / number);
    }
  } else if (ParseCount(rest, &number)) {
    return number;
  }
  return FlagError("servers",
                   absl::StrCat("numbers from 1 to ", kMostWorkers,
                                ", n (as many as workers) or "
                                "such as n/2"),
                   text);
}

absl::StatusOr<std::vector<PredictedJob>> ListPredictions(const PredictOptions& options) {
  GS_ASSIGN_OR_RETURN(PredictedJob job, CommonJob(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int> workers, WorkerCounts(options.workers));
  GS_RETURN_IF_ERROR(CheckConsistencies(options));
  if (options.servers.empty()) return FlagError("servers", "at least one number", "");
  for (const std::string& text : options.servers) {
    GS_RETURN_IF_ERROR(ServersOf(text, workers[0]).status());
  }
  std::vector<PredictedJob> jobs;
  for (const std::string& bandwidth : options.bandwidths) {
    job.bandwidth = bandwidth;
    for (int n : workers) {
      job.workers = n;
      GS_ASSIGN_OR_RETURN(job.slowness, Slowness(options.straggler, n));
      if (options.global_batch_size > 0) {
        if (options.global_batch_size % n != 0) {
          return FlagError("global_batch_size", absl::StrCat("a multiple of ", n, " workers"),
                           absl::StrCat(options.global_batch_size));
        }
        job.batch_size = options.global_batch_size / n;
      }
      for (const std::string& topology : options.topologies) {
        job.topology = topology;
        job.servers = 0;
        GS_RETURN_IF_ERROR(AddJobs(options, job, &jobs));
      }
    }
  }
  return jobs;
}

}  // namespace gradsync
