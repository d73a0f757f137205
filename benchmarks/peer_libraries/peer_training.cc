#include "benchmarks/peer_libraries/peer_training.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"
#include "benchmarks/options/byte_sizes.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "benchmarks/ranks/interactive_process.h"
#include "benchmarks/records/aggregate.h"

namespace gradsync {
namespace {

// One way to train, as processes that wait for their turn.
struct Contestant {
  std::string name;  // "gradsync ring/shm"
  std::vector<std::unique_ptr<InteractiveProcess>> ranks;
  std::vector<double> step_ms;  // mean step of each measured turn
  absl::optional<NcclLog> nccl_log;
  proto::Run run;
};

bool Synchronises(const PeerTrainingOptions& options) {
  return options.ranks > 1 || options.compute.on_gpu();
}

std::string DataOf(const PeerTrainingOptions& options) {
  return options.pixels == 32 ? "synthetic" : absl::StrCat("synthetic:", options.pixels);
}

void AddComputeFlags(const PeerTrainingOptions& options, int rank,
                     std::vector<std::string>* command) {
  for (std::string& flag : WorkerComputeFlags(options.compute)) command->push_back(std::move(flag));
  if (options.compute.on_gpu()) command->push_back(absl::StrCat("--local_rank=", rank));
}

// `bucket_bytes` 0 takes the default.
std::vector<std::string> OurCommand(const PeerTrainingOptions& options, const std::string& topology,
                                    int64_t bucket_bytes, int rank, const std::string& master) {
  std::vector<std::string> command = {options.rank_binary,
                                      absl::StrCat("--topology=", topology),
                                      absl::StrCat("--rank=", rank),
                                      absl::StrCat("--world_size=", options.ranks),
                                      absl::StrCat("--model=", options.model),
                                      absl::StrCat("--batch_size=", options.batch_size),
                                      absl::StrCat("--threads=", options.threads),
                                      absl::StrCat("--data=", DataOf(options)),
                                      absl::StrCat("--loader_threads=", options.loader_threads)};
  AddComputeFlags(options, rank, &command);
  if (options.compute.on_gpu() && topology == "ring") command.push_back("--link=nccl");
  if (bucket_bytes != 0) command.push_back(absl::StrCat("--bucket_bytes=", bucket_bytes));
  if (!master.empty()) command.push_back(absl::StrCat("--master=", master));
  return command;
}

absl::Status StartRank(const std::vector<std::string>& command, Contestant* contestant) {
  std::vector<std::string> environment;
  if (contestant->ranks.empty() && contestant->nccl_log.has_value()) {
    environment = contestant->nccl_log->environment();
  }
  GS_ASSIGN_OR_RETURN(std::unique_ptr<InteractiveProcess> process,
                      InteractiveProcess::Start(command, environment));
  contestant->ranks.push_back(std::move(process));
  return absl::OkStatus();
}

// Reads the line with which each rank says that it is ready: "ready LIBRARY AND VERSIONS|DEVICE|
// NCCL'S VERSION|WHAT NCCL WAS ASKED FOR". Returns the first part.
absl::StatusOr<std::string> AwaitReady(Contestant* contestant) {
  std::string library;
  std::vector<std::string> devices;
  for (const auto& rank : contestant->ranks) {
    GS_ASSIGN_OR_RETURN(const std::string line, rank->ReadLine());
    const std::vector<std::string> parts = absl::StrSplit(line, '|');
    absl::string_view text = parts[0];
    if (!absl::ConsumePrefix(&text, "ready ") || parts.size() != 4) {
      return absl::UnavailableError(line);
    }
    library = std::string(text);
    devices.push_back(parts[1]);
    contestant->run.set_nccl_version(parts[2]);
    contestant->run.set_nccl_asked(parts[3]);
  }
  contestant->run.set_device(NameDevices(devices));
  return library;
}

absl::StatusOr<Contestant> StartOurs(const PeerTrainingOptions& options,
                                     const std::string& topology, int64_t bucket_bytes = 0) {
  Contestant contestant;
  if (options.compute.on_gpu() && topology != "local") {
    GS_ASSIGN_OR_RETURN(contestant.nccl_log, NcclLog::ForLink("nccl", options.environment));
  }
  std::string master;
  for (int rank = 0; rank < options.ranks; ++rank) {
    GS_RETURN_IF_ERROR(
        StartRank(OurCommand(options, topology, bucket_bytes, rank, master), &contestant));
    if (topology == "local" || rank != 0) continue;
    GS_ASSIGN_OR_RETURN(const std::string line, contestant.ranks[0]->ReadLine());
    master = std::string(absl::StripPrefix(line, "store "));
  }
  GS_ASSIGN_OR_RETURN(contestant.name, AwaitReady(&contestant));
  const std::vector<std::string> words = absl::StrSplit(contestant.name, ' ');
  contestant.name = absl::StrCat("gradsync ", absl::StrJoin(words.begin() + 1, words.end(), "/"));
  contestant.name = std::string(absl::StripSuffix(contestant.name, "/"));
  if (bucket_bytes != 0) absl::StrAppend(&contestant.name, " ", FormatBytes(bucket_bytes));
  contestant.run.set_library("gradsync");
  contestant.run.set_topology(topology);
  contestant.run.set_bucket_bytes(static_cast<double>(bucket_bytes));
  if (topology != "local") contestant.run.set_link(words.back());
  return contestant;
}

absl::StatusOr<Contestant> StartPyTorch(const PeerTrainingOptions& options) {
  Contestant contestant;
  const bool ddp = Synchronises(options);
  contestant.name = ddp ? "pytorch ddp" : "pytorch";
  if (options.compute.on_gpu()) {
    GS_ASSIGN_OR_RETURN(contestant.nccl_log, NcclLog::ForLink("nccl", options.environment));
  }
  std::string master;
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::vector<std::string> command = {options.python,
                                        options.script,
                                        absl::StrCat("--model=", options.model),
                                        absl::StrCat("--batch_size=", options.batch_size),
                                        absl::StrCat("--threads=", options.threads),
                                        absl::StrCat("--pixels=", options.pixels),
                                        absl::StrCat("--rank=", rank),
                                        absl::StrCat("--world_size=", options.ranks),
                                        absl::StrCat("--master=", master)};
    AddComputeFlags(options, rank, &command);
    GS_RETURN_IF_ERROR(StartRank(command, &contestant));
    if (!ddp || rank != 0) continue;
    GS_ASSIGN_OR_RETURN(const std::string line, contestant.ranks[0]->ReadLine());
    if (!absl::StartsWith(line, "store ")) return absl::UnavailableError(line);
    master = std::string(absl::StripPrefix(line, "store "));
  }
  GS_ASSIGN_OR_RETURN(const std::string versions, AwaitReady(&contestant));
  std::printf("%s: %s\n", contestant.name.c_str(), versions.c_str());
  contestant.run.set_library(ddp ? "pytorch_ddp" : "pytorch");
  contestant.run.set_topology(ddp ? "ring" : "local");
  if (ddp) contestant.run.set_link(options.compute.on_gpu() ? "nccl" : "gloo");
  return contestant;
}

// Milliseconds of a turn, per step: from the first rank's start to the last rank's end.
absl::StatusOr<double> TakeTurn(const Contestant& contestant, int steps) {
  for (const auto& rank : contestant.ranks) {
    GS_RETURN_IF_ERROR(rank->WriteLine(absl::StrCat(steps)));
  }
  double begin = std::numeric_limits<double>::infinity();
  double end = 0;
  for (const auto& rank : contestant.ranks) {
    GS_ASSIGN_OR_RETURN(const std::string line, rank->ReadLine());
    const std::pair<std::string, std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    double first = 0;
    double last = 0;
    if (!absl::SimpleAtod(words.first, &first) || !absl::SimpleAtod(words.second, &last)) {
      return absl::DataLossError(absl::StrCat(contestant.name, " said \"", line,
                                              "\", expected the microseconds of begin and end"));
    }
    begin = std::min(begin, first);
    end = std::max(end, last);
  }
  return (end - begin) * 1e-3 / steps;
}

absl::Status TakeTurns(const PeerTrainingOptions& options, std::vector<Contestant>* contestants) {
  const size_t count = contestants->size();
  for (int round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      Contestant& contestant = (*contestants)[(i + round) % count];
      GS_ASSIGN_OR_RETURN(const double ms, TakeTurn(contestant, options.steps_per_round));
      if (round > 0) contestant.step_ms.push_back(ms);
    }
    if (round == 0) continue;
    std::printf("round %2d/%d:", round, options.rounds);
    for (const Contestant& contestant : *contestants) {
      std::printf("  %s %.1f ms", contestant.name.c_str(), contestant.step_ms.back());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

std::string Format(const MedianSpread& interval, int values) {
  return absl::StrFormat("%.3f, 95 %% interval %.3f to %.3f (median of %d rounds)", interval.p50,
                         interval.low, interval.high, values);
}

void Fill(const PeerTrainingOptions& options, Contestant* contestant) {
  proto::Run& run = contestant->run;
  run.set_update("worker");
  run.set_workers(options.ranks);
  run.set_model(options.model);
  run.set_data(DataOf(options));
  run.set_precision(options.compute.precision);
  run.set_channels_last(options.compute.channels_last);
  run.set_tf32(options.compute.tf32);
  if (contestant->nccl_log.has_value()) run.set_nccl_chosen(contestant->nccl_log->Chosen());
  run.set_batch_size(options.batch_size);
  run.set_threads(options.threads);
  run.set_steps(options.rounds * options.steps_per_round);
  run.set_step_ms_p50(Percentile(contestant->step_ms, 0.5));
  run.set_step_ms_p10(Percentile(contestant->step_ms, 0.1));
  run.set_step_ms_p90(Percentile(contestant->step_ms, 0.9));
  run.set_samples_per_s(1e3 * options.batch_size * options.ranks / run.step_ms_p50());
}

}  // namespace

absl::StatusOr<std::vector<proto::Run>> RunPeerTraining(const PeerTrainingOptions& options) {
  std::vector<Contestant> contestants;
  const std::vector<int64_t> defaults = {0};
  for (int64_t bucket_bytes : options.bucket_bytes.empty() ? defaults : options.bucket_bytes) {
    if (!Synchronises(options)) break;
    GS_ASSIGN_OR_RETURN(contestants.emplace_back(), StartOurs(options, "ring", bucket_bytes));
  }
  GS_ASSIGN_OR_RETURN(contestants.emplace_back(), StartOurs(options, "local"));
  absl::StatusOr<Contestant> pytorch = StartPyTorch(options);
  if (pytorch.ok()) {
    contestants.push_back(*std::move(pytorch));
  } else {
    std::printf("pytorch: %s\n", std::string(pytorch.status().message()).c_str());
  }
  std::printf("%s, %s, %s, %s%s, %d ranks, batch %d and %d threads each, turns of %d steps\n",
              options.model.c_str(), DataOf(options).c_str(), contestants[0].run.device().c_str(),
              options.compute.precision.c_str(),
              options.compute.channels_last ? " channels-last" : "", options.ranks,
              options.batch_size, options.threads, options.steps_per_round);
  GS_RETURN_IF_ERROR(TakeTurns(options, &contestants));

  const Contestant& ours = contestants[0];
  std::vector<proto::Run> runs;
  for (Contestant& contestant : contestants) {
    Fill(options, &contestant);
    std::printf("%s: %.1f ms, %.1f samples/s\n", contestant.name.c_str(),
                contestant.run.step_ms_p50(), contestant.run.samples_per_s());
    if (contestant.run.nccl_version().empty()) continue;
    std::printf(
        "  NCCL %s, asked for %s, chose %s\n", contestant.run.nccl_version().c_str(),
        contestant.run.nccl_asked().empty() ? "nothing" : contestant.run.nccl_asked().c_str(),
        contestant.run.nccl_chosen().c_str());
  }
  for (Contestant& contestant : contestants) {
    if (&contestant != &ours) {
      const MedianSpread ratio = SpreadOfMedian(RatiosByRound(ours.step_ms, contestant.step_ms));
      contestant.run.set_peer_ratio(ratio.p50);
      const bool local = contestant.run.topology() == "local" && Synchronises(options);
      // Against the same processes without synchronisation, what it costs; against others, how much
      // faster.
      if (local) {
        std::printf(
            "step of %s over %s: %s\n", ours.name.c_str(), contestant.name.c_str(),
            Format(SpreadOfMedian(RatiosByRound(contestant.step_ms, ours.step_ms)), options.rounds)
                .c_str());
      } else {
        std::printf("samples/s of %s over %s: %s\n", ours.name.c_str(), contestant.name.c_str(),
                    Format(ratio, options.rounds).c_str());
      }
    }
    runs.push_back(contestant.run);
  }
  return runs;
}

}  // namespace gradsync
