#include "benchmarks/exchange/sync_bench_options.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/flag_error.h"
#include "base/status_macros.h"
#include "benchmarks/options/byte_sizes.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placement.h"
#include "plan/codec.h"
#include "join/server_weights.h"

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

bool OnEmulatedHosts(const SyncBenchOptions& options) {
  return !options.bandwidth.empty() && options.emulate;
}

absl::Status CheckLinks(const SyncBenchOptions& options) {
  GS_RETURN_IF_ERROR(
      CheckNames("link", options.links, {"auto", "grpc", "shm", "gloo", "nccl", "cuda_ipc"}));
  if (OnEmulatedHosts(options)) {
    GS_RETURN_IF_ERROR(CheckLinksBetweenHosts("link", options.links));
  }
  if (Contains(options.links, "gloo") && !Contains(options.topologies, "ring")) {
    return FlagError("link", "grpc, or ring among --topology", "gloo");
  }
  if (Contains(options.links, "gloo") && !Contains(options.updates, "worker")) {
    return FlagError("update", "worker with --link=gloo, which has no reduce-scatter", "owner");
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const SyncBenchOptions& options) {
  if (options.iterations < 1) {
    return FlagError("iterations", "at least 1", absl::StrCat(options.iterations));
  }
  if (options.warmup < 0) return FlagError("warmup", "at least 0", absl::StrCat(options.warmup));
  if (options.connections < 0 || options.connections > 256) {
    return FlagError("connections", "1 to 256, or 0 for the default",
                     absl::StrCat(options.connections));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", "more than 0s", absl::FormatDuration(options.timeout));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Codec>> Codecs(const SyncBenchOptions& options) {
  std::vector<Codec> codecs;
  for (const std::string& text : options.compressions) {
    const absl::StatusOr<Codec> codec = ParseCodec(text);
    if (!codec.ok() || codec->sparse()) {
      return FlagError("compression",
                       "some of none, fp16, bf16 (compare measures topk, whose results depend on "
                       "all earlier steps)",
                       text);
    }
    if (codec->compresses() && !Contains(options.links, "auto") &&
        !Contains(options.links, "grpc")) {
      return FlagError("compression", "none without --link=grpc, the only one that sends", text);
    }
    codecs.push_back(*codec);
  }
  if (codecs.empty()) return FlagError("compression", "some of none, fp16, bf16", "");
  return codecs;
}

bool Possible(const SyncBenchCase& bench_case) {
  const bool sends = bench_case.link == "auto" || bench_case.link == "grpc";
  if (bench_case.exchange.codec.compresses() && !sends) return false;
  if (!PlacementFits(bench_case.placement, bench_case.exchange.world_size, bench_case.servers)) {
    return false;
  }
  if (bench_case.servers_are_ranks() && !bench_case.weights.empty()) return false;
  return bench_case.link != "gloo" ||
         (bench_case.topology == "ring" && bench_case.update == "worker");
}

// Those that were asked for; empty when the placement decides.
absl::StatusOr<std::vector<double>> Weights(const SyncBenchOptions& options) {
  GS_ASSIGN_OR_RETURN(const ServerWeights weights, ParseServerWeights(options.server_weights));
  return weights.weights;
}

// The servers of a case must be as many as the weights that were asked for.
absl::Status CheckWeights(const SyncBenchCase& bench_case) {
  const int servers = bench_case.server_processes();
  if (bench_case.servers == 0 || bench_case.weights.empty() ||
      bench_case.weights.size() == static_cast<size_t>(servers)) {
    return absl::OkStatus();
  }
  return FlagError(
      "server_weights",
      absl::StrCat("one for each of ", servers, " servers (", Describe(bench_case), ")"),
      bench_case.server_weights);
}

// What all measurements have in common.
absl::StatusOr<SyncBenchCase> CommonCase(const SyncBenchOptions& options) {
  SyncBenchCase common;
  common.connections = options.connections;
  common.device = options.device;
  common.exchange.iterations = options.iterations;
  common.exchange.warmup = options.warmup;
  common.exchange.timeout = options.timeout;
  GS_ASSIGN_OR_RETURN(common.exchange.bucket_bytes,
                      ParseSize("bucket_bytes", options.bucket_bytes));
  GS_ASSIGN_OR_RETURN(common.exchange.chunk_bytes, ParseChunkBytes(options.chunk_bytes));
  if (!options.bandwidth.empty()) {
    const absl::StatusOr<double> rate = ParseBandwidth(options.bandwidth);
    if (!rate.ok()) return Named("bandwidth", rate.status());
    common.bytes_per_second = *rate;
    if (options.emulate) common.bandwidth = options.bandwidth;
  } else if (!options.emulate) {
    return FlagError("emulate", "true without --bandwidth", "false");
  }
  GS_ASSIGN_OR_RETURN(common.weights, Weights(options));
  common.server_weights = options.server_weights;
  return common;
}

// Placements and numbers of servers, for a topology and link.
std::vector<PlacedServers> Placed(const SyncBenchOptions& options, const SyncBenchCase& bench_case,
                                  const std::vector<int>& servers) {
  if (!bench_case.servers_are_ranks()) {
    return PlaceServers(bench_case.topology, options.placements, servers);
  }
  return PlaceServers(bench_case.topology, {"colocated"}, servers);
}

}  // namespace

int SyncBenchCase::server_processes() const {
  return servers_are_ranks() ? 0 : ServerProcesses(placement, exchange.world_size, servers);
}

std::string Describe(const SyncBenchCase& bench_case) {
  std::string text = bench_case.topology;
  if (bench_case.link != "auto") absl::StrAppend(&text, " over ", bench_case.link);
  if (bench_case.update != "worker") absl::StrAppend(&text, ", update at ", bench_case.update);
  if (bench_case.exchange.codec.compresses()) {
    absl::StrAppend(&text, ", ", CodecName(bench_case.exchange.codec));
  }
  if (bench_case.servers > 0) absl::StrAppend(&text, ", servers ", bench_case.servers);
  if (bench_case.servers > 0 && bench_case.placement != "dedicated") {
    absl::StrAppend(&text, " ", bench_case.placement);
  }
  return absl::StrCat(text, ", ranks ", bench_case.exchange.world_size, ", ",
                      FormatBytes(bench_case.exchange.bytes));
}

absl::StatusOr<std::vector<SyncBenchCase>> ListCases(const SyncBenchOptions& options) {
  GS_RETURN_IF_ERROR(CheckNames("topology", options.topologies, {"ring", "ps"}));
  GS_RETURN_IF_ERROR(CheckLinks(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int> ranks,
                      ParseCounts("ranks", options.ranks, kMostRanks));
  GS_ASSIGN_OR_RETURN(const std::vector<int> servers,
                      ParseCounts("servers", options.servers, kMostRanks));
  GS_RETURN_IF_ERROR(CheckPlacements(options.placements, OnEmulatedHosts(options)));
  GS_RETURN_IF_ERROR(CheckNames("update", options.updates, {"worker", "owner"}));
  GS_ASSIGN_OR_RETURN(const std::vector<Codec> codecs, Codecs(options));
  GS_RETURN_IF_ERROR(CheckNumbers(options));
  GS_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, Sizes(options));
  GS_ASSIGN_OR_RETURN(SyncBenchCase next, CommonCase(options));

  std::vector<SyncBenchCase> cases;
  for (int n : ranks) {
    next.exchange.world_size = n;
    for (int64_t bytes : sizes) {
      next.exchange.bytes = bytes;
      for (const std::string& topology : options.topologies) {
        next.topology = topology;
        for (const std::string& link : options.links) {
          next.link = link;
          const std::vector<PlacedServers> placed = Placed(options, next, servers);
          for (const std::string& update : options.updates) {
            next.update = update;
            for (const PlacedServers& group : placed) {
              next.placement = group.placement;
              next.servers = group.count;
              for (Codec codec : codecs) {
                next.exchange.codec = codec;
                if (!Possible(next)) continue;
                GS_RETURN_IF_ERROR(CheckWeights(next));
                cases.push_back(next);
              }
            }
          }
        }
      }
    }
  }
  const bool ring_only =
      std::all_of(options.links.begin(), options.links.end(), [](const std::string& link) {
        return link == "gloo" || link == "nccl" || link == "cuda_ipc";
      });
  if (Contains(options.topologies, "ps") && !ring_only) {
    GS_RETURN_IF_ERROR(CheckPlaced(options.placements, cases, "ranks"));
  }
  return cases;
}

std::vector<std::string> RankFlags(const SyncBenchCase& bench_case, const std::string& start_line) {
  const ExchangeOptions& exchange = bench_case.exchange;
  std::vector<std::string> flags = {
      absl::StrCat("--topology=", bench_case.topology),
      absl::StrCat("--link=", bench_case.link),
      absl::StrCat("--update=", bench_case.update),
      absl::StrCat("--connections=", bench_case.connections),
      absl::StrCat("--bytes=", exchange.bytes),
      absl::StrCat("--bucket_bytes=", exchange.bucket_bytes),
      absl::StrCat("--chunk_bytes=", exchange.chunk_bytes),
      absl::StrCat("--iterations=", exchange.iterations),
      absl::StrCat("--warmup=", exchange.warmup),
      absl::StrCat("--timeout=", absl::FormatDuration(exchange.timeout)),
      absl::StrCat("--start_line=", start_line)};
  if (bench_case.device != "cpu") flags.push_back(absl::StrCat("--device=", bench_case.device));
  if (exchange.codec.compresses()) {
    flags.push_back(absl::StrCat("--compression=", CodecName(exchange.codec)));
  }
  if (bench_case.servers_are_ranks()) {
    flags.push_back(absl::StrCat("--owners=", bench_case.servers));
  }
  if (bench_case.servers > 0 && bench_case.server_weights != "auto") {
    flags.push_back(absl::StrCat("--server_weights=", bench_case.server_weights));
  }
  return flags;
}

}  // namespace gradsync
