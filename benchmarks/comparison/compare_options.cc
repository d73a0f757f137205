#include "benchmarks/comparison/compare_options.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "allreduce/open_nccl.h"
#include "base/flag_error.h"
#include "base/rate.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placement.h"
#include "benchmarks/options/shared_gpu.h"
#include "plan/codec.h"
#include "train/open_dataset.h"

namespace gradsync {
namespace {

constexpr int64_t kDefaultBatchSize = 32;

// Flags that `compare` gives to the workers itself.
constexpr absl::string_view kOwnFlags[] = {"topology",
                                           "link",
                                           "update",
                                           "servers",
                                           "num_servers",
                                           "rank",
                                           "world_size",
                                           "master",
                                           "model",
                                           "stem",
                                           "data",
                                           "batch_size",
                                           "steps",
                                           "epochs",
                                           "warmup_steps",
                                           "threads",
                                           "lr",
                                           "seed",
                                           "timeout",
                                           "metrics_json",
                                           "port_file",
                                           "log_every",
                                           "compression",
                                           "straggler",
                                           "consistency",
                                           "device",
                                           "local_rank",
                                           "precision",
                                           "tf32",
                                           "channels_last",
                                           "cudnn_benchmark",
                                           "nocudnn_benchmark"};

absl::Status CheckAtLeast(absl::string_view flag, int64_t minimum, int64_t found) {
  if (found >= minimum) return absl::OkStatus();
  return FlagError(flag, absl::StrCat("at least ", minimum), absl::StrCat(found));
}

absl::Status CheckLinks(const CompareOptions& options) {
  GS_RETURN_IF_ERROR(CheckNames("links", options.links, {"auto", "grpc", "shm", "gloo", "nccl"}));
  bool for_ps = false;
  for (const std::string& link : options.links) {
    const bool ring_only = link == "gloo" || link == "nccl";
    for_ps = for_ps || !ring_only;
    if (ring_only && !Contains(options.topologies, "ring")) {
      return FlagError("links", "grpc, or ring among --topologies", link);
    }
  }
  if (!for_ps && Contains(options.topologies, "ps")) {
    return FlagError("links", "grpc too, for ps, which does not run over Gloo or NCCL",
                     absl::StrJoin(options.links, ","));
  }
  if (Contains(options.links, "gloo") && Contains(options.updates, "owner") &&
      options.links.size() == 1) {
    return FlagError("update", "worker with --links=gloo, which has no reduce-scatter", "owner");
  }
  return absl::OkStatus();
}

absl::Status CheckCompressions(const CompareOptions& options) {
  if (options.compressions.empty()) {
    return FlagError("compression", "some of none, fp16, bf16, topk:R", "");
  }
  for (const std::string& text : options.compressions) {
    const absl::StatusOr<Codec> codec = ParseCodec(text);
    if (!codec.ok()) return Named("compression", codec.status());
    if (!codec->compresses()) continue;
    if (!Contains(options.links, "auto") && !Contains(options.links, "grpc")) {
      return FlagError("compression", "none without --links=grpc, the only one that sends", text);
    }
    const bool ring = Contains(options.topologies, "ring") && !codec->sparse();
    if (!ring && !Contains(options.topologies, "ps")) {
      return FlagError(
          "compression",
          codec->sparse() ? "ps among --topologies for topk" : "ps or ring among --topologies",
          text);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const CompareOptions& options) {
  GS_RETURN_IF_ERROR(CheckPlacements(options.placements, !options.bandwidths.empty()));
  if (options.bandwidths.empty()) return absl::OkStatus();
  for (const std::string& bandwidth : options.bandwidths) {
    const absl::StatusOr<double> rate = ParseBandwidth(bandwidth);
    if (!rate.ok()) return Named("bandwidth", rate.status());
    const auto same = std::count(options.bandwidths.begin(), options.bandwidths.end(), bandwidth);
    if (same > 1) return FlagError("bandwidth", "each bandwidth once", bandwidth);
  }
  return CheckLinksBetweenHosts("links", options.links);
}

std::vector<std::string> LinksOf(const CompareOptions& options) {
  if (!options.links.empty()) return options.links;
  if (!options.bandwidths.empty()) return {"grpc"};
  return {"grpc", "shm"};
}

absl::Status CheckJob(const CompareOptions& options) {
  GS_RETURN_IF_ERROR(CheckNames("model", {options.model}, {"resnet18", "resnet50", "mlp"}));
  GS_RETURN_IF_ERROR(CheckNames("stem", {options.stem}, {"imagenet", "cifar"}));
  GS_RETURN_IF_ERROR(CheckAtLeast("rounds", 1, options.rounds));
  GS_RETURN_IF_ERROR(CheckAtLeast("warmup_steps", 0, options.warmup_steps));
  if (options.steps <= options.warmup_steps) {
    return FlagError("steps", absl::StrCat("more than --warmup_steps=", options.warmup_steps),
                     absl::StrCat(options.steps));
  }
  GS_RETURN_IF_ERROR(CheckAtLeast("batch_size", 0, options.batch_size));
  GS_RETURN_IF_ERROR(CheckAtLeast("global_batch_size", 0, options.global_batch_size));
  if (options.batch_size > 0 && options.global_batch_size > 0) {
    return FlagError("global_batch_size", "nothing beside --batch_size",
                     absl::StrCat(options.global_batch_size));
  }
  GS_RETURN_IF_ERROR(CheckAtLeast("threads", 1, options.threads));
  GS_RETURN_IF_ERROR(CheckCompute(options.compute, options.updates));
  if (options.compute.on_gpu() && !options.straggler.empty()) {
    return FlagError("straggler", "none on a GPU, whose work the host only queues",
                     options.straggler);
  }
  if (!(options.lr >= 0)) return FlagError("lr", "at least 0", absl::StrCat(options.lr));
  if (options.timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", "more than 0s", absl::FormatDuration(options.timeout));
  }
  for (const std::string& flag : options.worker_flags) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(
        absl::StripPrefix(absl::StripPrefix(flag, "-"), "-"), absl::MaxSplits('=', 1));
    if (!absl::StartsWith(flag, "-")) {
      return absl::InvalidArgumentError(
          absl::StrCat("expected worker flags, --name=value, after --, found \"", flag, "\""));
    }
    if (std::find(std::begin(kOwnFlags), std::end(kOwnFlags), parts.first) != std::end(kOwnFlags)) {
      return FlagError(parts.first, "it before the --, or not at all", flag);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckData(const CompareOptions& options) {
  for (Split split : {Split::kTrain, Split::kTest}) {
    const absl::Status status = OpenDataset(options.data, split).status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--data: ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> BatchSize(const CompareOptions& options, int workers) {
  if (options.global_batch_size == 0) {
    return options.batch_size == 0 ? kDefaultBatchSize : options.batch_size;
  }
  if (options.global_batch_size % workers != 0) {
    return FlagError("global_batch_size", absl::StrCat("a multiple of ", workers, " workers"),
                     absl::StrCat(options.global_batch_size));
  }
  return options.global_batch_size / workers;
}

bool Possible(const Configuration& configuration) {
  if (!PlacementFits(configuration.placement, configuration.workers, configuration.servers)) {
    return false;
  }
  const absl::StatusOr<Codec> codec = ParseCodec(configuration.compression);
  if (codec.ok() && codec->compresses()) {
    if (configuration.topology == "local") return false;
    if (configuration.link != "auto" && configuration.link != "grpc") return false;
    if (codec->sparse() && configuration.topology == "ring") return false;
  }
  if (configuration.consistency != "bsp") {
    if (configuration.topology != "ps" || configuration.update != "owner") return false;
    if (configuration.link != "auto" && configuration.link != "grpc") return false;
    if (codec.ok() && codec->compresses()) return false;
  }
  if (configuration.link == "nccl") return configuration.topology == "ring";
  return configuration.link != "gloo" ||
         (configuration.topology == "ring" && configuration.update == "worker");
}

std::string Count(int count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

// Those with `n` workers at one bandwidth, which are compared with each other.
absl::Status AddConfigurations(const CompareOptions& options, const std::string& bandwidth, int n,
                               const std::vector<int>& servers, std::vector<Configuration>* all) {
  GS_ASSIGN_OR_RETURN(const int64_t batch_size, BatchSize(options, n));
  for (const std::string& topology : options.topologies) {
    const std::vector<PlacedServers> placed = PlaceServers(topology, options.placements, servers);
    const std::vector<std::string> links =
        topology == "local" ? std::vector<std::string>{"auto"} : options.links;
    for (const std::string& link : links) {
      for (const std::string& update : options.updates) {
        for (const PlacedServers& group : placed) {
          for (const std::string& compression : options.compressions) {
            Configuration next = {topology,   link,        update,          group.count, n,
                                  batch_size, compression, group.placement, bandwidth};
            const bool any = topology == "ps" && update == "owner";
            for (const std::string& consistency :
                 any ? options.consistencies : std::vector<std::string>{"bsp"}) {
              next.consistency = consistency;
              if (Possible(next)) all->push_back(next);
            }
          }
        }
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string Describe(const Configuration& configuration) {
  std::string text = configuration.topology;
  if (configuration.link != "auto" && !configuration.link.empty()) {
    absl::StrAppend(&text, " over ", configuration.link);
  }
  if (configuration.update != "worker") {
    absl::StrAppend(&text, ", update at ", configuration.update);
  }
  if (configuration.compression != "none") {
    absl::StrAppend(&text, ", ", configuration.compression);
  }
  if (configuration.consistency != "bsp") {
    absl::StrAppend(&text, ", ", configuration.consistency);
  }
  if (configuration.servers > 0) {
    const bool placed = configuration.placement != "dedicated" && !configuration.placement.empty();
    absl::StrAppend(&text, ", ", placed ? configuration.placement + " " : "",
                    Count(configuration.servers, "server"));
  }
  absl::StrAppend(&text, ", ", Count(configuration.workers, "worker"));
  return configuration.bandwidth.empty() ? text : absl::StrCat(text, ", ", configuration.bandwidth);
}

absl::Status ResolveLinksAndDevice(const GpuChecker& check, CompareOptions* options) {
  GS_ASSIGN_OR_RETURN(const std::vector<int> workers,
                      ParseCounts("workers", options->workers, kNoMost));
  const int most = *std::max_element(workers.begin(), workers.end());
  const int gpus = GpusOf(most, std::max(1, options->ranks_per_gpu));
  GS_ASSIGN_OR_RETURN(options->compute.device,
                      ResolveDevice(options->compute.device, options->links, gpus, check));
  GS_RETURN_IF_ERROR(CheckRanksPerGpu(options->ranks_per_gpu, options->compute.device));
  // Ranks that share a GPU, as they may with cuda:N, are refused by NCCL.
  if (options->ranks_per_gpu == 1 && options->links.empty() && options->bandwidths.empty() &&
      NcclVersion() != 0 && options->compute.device == "cuda" &&
      Contains(options->topologies, "ring")) {
    options->links = {"grpc", "shm", "nccl"};
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Configuration>> ListConfigurations(const CompareOptions& asked_for) {
  CompareOptions options = asked_for;
  options.links = LinksOf(options);
  GS_RETURN_IF_ERROR(CheckNames("topologies", options.topologies, {"ps", "ring", "local"}));
  GS_ASSIGN_OR_RETURN(const std::vector<int> workers,
                      ParseCounts("workers", options.workers, kNoMost));
  std::vector<int> servers;
  if (Contains(options.topologies, "ps")) {
    GS_ASSIGN_OR_RETURN(servers, ParseCounts("servers", options.servers, kNoMost));
  }
  GS_RETURN_IF_ERROR(CheckPlacement(options));
  GS_RETURN_IF_ERROR(CheckNames("update", options.updates, {"worker", "owner"}));
  GS_RETURN_IF_ERROR(CheckLinks(options));
  GS_RETURN_IF_ERROR(CheckCompressions(options));
  GS_RETURN_IF_ERROR(CheckConsistencies(options.consistencies, options.topologies, options.updates,
                                        options.links, options.compressions));
  GS_RETURN_IF_ERROR(CheckJob(options));
  GS_ASSIGN_OR_RETURN(const Straggler straggler, Straggler::Parse(options.straggler));
  for (int n : workers) GS_RETURN_IF_ERROR(straggler.CheckWorkers(n));
  GS_RETURN_IF_ERROR(CheckData(options));

  std::vector<Configuration> all;
  const std::vector<std::string> here = {""};
  for (const std::string& bandwidth : options.bandwidths.empty() ? here : options.bandwidths) {
    for (int n : workers) {
      GS_RETURN_IF_ERROR(AddConfigurations(options, bandwidth, n, servers, &all));
    }
  }
  if (Contains(options.topologies, "ps")) {
    GS_RETURN_IF_ERROR(CheckPlaced(options.placements, all, "workers"));
  }
  return all;
}

std::vector<std::string> WorkerFlags(const CompareOptions& options,
                                     const Configuration& configuration) {
  std::vector<std::string> flags = {
      absl::StrCat("--topology=", configuration.topology),
      absl::StrCat("--link=", configuration.link),
      absl::StrCat("--update=", configuration.update),
      absl::StrCat("--batch_size=", configuration.batch_size),
      absl::StrCat("--model=", options.model),
      absl::StrCat("--stem=", options.stem),
      absl::StrCat("--data=", options.data),
      absl::StrCat("--steps=", options.steps),
      absl::StrCat("--warmup_steps=", options.warmup_steps),
      absl::StrCat("--threads=", options.threads),
      absl::StrCat("--lr=", options.lr),
      absl::StrCat("--seed=", options.seed),
      absl::StrCat("--timeout=", absl::FormatDuration(options.timeout)),
      "--log_every=1",
  };
  if (!options.straggler.empty()) {
    flags.push_back(absl::StrCat("--straggler=", options.straggler));
  }
  if (configuration.consistency != "bsp") {
    flags.push_back(absl::StrCat("--consistency=", configuration.consistency));
  }
  if (configuration.compression != "none") {
    flags.push_back(absl::StrCat("--compression=", configuration.compression));
  }
  const std::vector<std::string> compute = WorkerComputeFlags(options.compute);
  flags.insert(flags.end(), compute.begin(), compute.end());
  flags.insert(flags.end(), options.worker_flags.begin(), options.worker_flags.end());
  return flags;
}

}  // namespace gradsync
