#include "benchmarks/peer_libraries/training_contestant.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/ranks/rank_spec.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/run_job.h"
#include "core/base/status_macros.h"
#include "core/plan/kinds.h"
#include "core/program/byte_sizes.h"

namespace gradsync {
namespace {

constexpr char kBest[] = "bucket_view,no_buffers,static_graph,fused,cudnn_benchmark,prefetch";
// What is tried beside it on CPUs, where not every setting helps and how large buckets should be
// depends on how much of an exchange the cores leave to hide.
constexpr const char* kOtherBest[] = {
    "bucket_view,no_buffers,static_graph",
    "bucket_view,no_buffers,fused",
    "no_buffers,static_graph,fused",
    "bucket_view,no_buffers,static_graph,fused,bucket_mib=5",
    "bucket_view,no_buffers,static_graph,fused,bucket_mib=100",
};
// Its capture was documented without static_graph.
constexpr char kGraph[] = "bucket_view,no_buffers,fused,cudnn_benchmark,prefetch,graph";

constexpr absl::Duration kOurTimeout = absl::Seconds(120);

proto::RankSpec SpecOf(const PeerTrainingOptions& options, const OurRow& row) {
  const ComputeFlags& compute = options.compute;
  proto::RankSpec spec;
  SetJob(row.spec, &spec);
  if (compute.on_gpu()) spec.mutable_job()->set_device(compute.device);
  proto::RankSpec::Training& training = *spec.mutable_training();
  training.set_model(options.model);
  training.set_data(DataOf(options));
  training.set_batch_size(options.batch_size);
  training.set_threads(options.threads);
  training.set_loader_threads(options.loader_threads);
  training.set_bucket_bytes(row.bucket_bytes);
  training.set_precision(PrecisionName(compute.precision));
  training.set_channels_last(compute.channels_last);
  training.set_tf32(compute.tf32);
  training.set_cudnn_benchmark(compute.on_gpu() && compute.cudnn_benchmark);
  training.set_eager(row.eager);
  return spec;
}

void Append(const std::vector<std::string>& more, std::vector<std::string>* list) {
  list->insert(list->end(), more.begin(), more.end());
}

bool ThroughTheHost(const OurRow& row) {
  return row.spec.topology != Topology::kLocal && row.spec.link != Link::kNccl;
}

// Without what only our programs know.
ComputeFlags PythonCompute(ComputeFlags flags) {
  flags.cudnn_benchmark = false;
  return flags;
}

// Microseconds of begin and end.
using Turn = std::pair<double, double>;

absl::optional<Turn> ParseTurn(absl::string_view line) {
  const std::pair<std::string, std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
  Turn turn;
  const bool parsed =
      absl::SimpleAtod(words.first, &turn.first) && absl::SimpleAtod(words.second, &turn.second);
  return parsed ? absl::make_optional(turn) : absl::nullopt;
}

bool IsStore(absl::string_view line) { return absl::StartsWith(line, "store "); }
bool IsReady(absl::string_view line) { return absl::StartsWith(line, "ready "); }
bool IsTurn(absl::string_view line) { return ParseTurn(line).has_value(); }

// The next line that is one of ours: libraries print there too, such as NCCL its log.
absl::StatusOr<std::string> ReadAnswer(bool (*expected)(absl::string_view), Deadline deadline,
                                       InteractiveProcess* process) {
  while (true) {
    GS_ASSIGN_OR_RETURN(std::string line, process->ReadLine(deadline));
    if (expected(line)) return line;
    if (absl::StartsWith(line, "cannot run")) return absl::UnavailableError(line);
    std::printf("%s\n", line.c_str());
  }
}

constexpr int kTurns = 3;  // of each in a comparison; one more before them, to warm up

// Lets both take turns alternately, tells the times and returns whether the challenger wins. One
// whose turn fails loses; its times are not looked at.
bool Wins(int steps, const std::function<void(absl::string_view)>& progress,
          TrainingContestant* challenger, TrainingContestant* best) {
  const std::string trying = absl::StrCat("trying ", challenger->run().settings());
  std::vector<double> mine;
  std::vector<double> theirs;
  for (int turn = 0; turn <= kTurns; ++turn) {
    const absl::StatusOr<double> held = best->TakeTurn(steps);
    if (!held.ok()) {
      progress(absl::StrCat(trying, ": beside it failed ", held.status().message()));
      return true;
    }
    const absl::StatusOr<double> tried = challenger->TakeTurn(steps);
    if (!tried.ok()) {
      progress(absl::StrCat(trying, ": ", tried.status().message()));
      return false;
    }
    if (turn == 0) continue;
    mine.push_back(*held);
    theirs.push_back(*tried);
  }
  const double held = Percentile(mine, 0.5);
  const double tried = Percentile(theirs, 0.5);
  progress(absl::StrFormat("%s: %.1f ms, beside %.1f ms with %s", trying, tried, held,
                           best->run().settings()));
  return tried < held;
}

}  // namespace

std::vector<OurRow> OurRows(const PeerTrainingOptions& options) {
  std::vector<OurRow> rows;
  std::vector<Link> links = options.links;
  if (links.empty()) links = {options.compute.on_gpu() ? Link::kNccl : Link::kAuto};
  std::vector<int64_t> sizes = options.bucket_bytes;
  if (sizes.empty()) sizes = {0};
  for (Link link : links) {
    for (Topology topology : options.topologies) {
      OurRow row;
      row.spec.topology = topology;
      row.spec.link = link;
      if (!options.synchronises() || OwnersAreRanks(row.spec)) continue;
      for (const int64_t bytes : sizes) {
        row.bucket_bytes = bytes;
        rows.push_back(row);
      }
    }
  }
  if (options.compute.on_gpu() && !rows.empty()) {
    rows.push_back(rows[0]);
    rows.back().eager = true;
  }
  if (!options.compute.on_gpu() || options.ranks > 1) rows.emplace_back();
  return rows;
}

std::vector<PyTorchRow> PyTorchRows(const PeerTrainingOptions& options) {
  const std::string name = options.synchronises() ? "pytorch ddp" : "pytorch";
  const std::vector<OurRow> ours = OurRows(options);
  const bool on_gpu = options.compute.on_gpu();
  struct Known {
    const char* key;
    PyTorchRow row;
    bool usual;
  };
  const Known all[] = {
      {"best", {name + " best", kBest}, true},
      {"default", {name, ""}, true},
      {"compiled", {name + " compiled", absl::StrCat(kBest, ",compile")}, on_gpu},
      {"graphs", {name + " graphs", kGraph}, on_gpu},
      {"compiled_graphs", {name + " compiled graphs", absl::StrCat(kGraph, ",compile")}, on_gpu},
      {"gloo",
       {name + " gloo", kBest, "gloo"},
       on_gpu && std::any_of(ours.begin(), ours.end(), ThroughTheHost)}};
  std::vector<PyTorchRow> rows;
  for (const Known& known : all) {
    if (options.pytorch.empty() ? known.usual : Contains(options.pytorch, known.key)) {
      rows.push_back(known.row);
      if (known.row.settings == kBest && !on_gpu && options.synchronises()) {
        rows.back().other_settings = {std::begin(kOtherBest), std::end(kOtherBest)};
      }
      if (options.compute.cudnn_benchmark) continue;
      absl::StrReplaceAll({{"cudnn_benchmark,", ""}}, &rows.back().settings);  // it is never last
    }
  }
  return rows;
}

absl::StatusOr<TrainingContestant> TrainingContestant::StartOurs(const PeerTrainingOptions& options,
                                                                 const OurRow& row) {
  TrainingContestant contestant;
  contestant.meets_ = row.spec.topology != Topology::kLocal;
  contestant.over_nccl_ = row.spec.link == Link::kNccl;
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<RankFiles> files,
                      RankFiles::Create(SpecOf(options, row), kOurTimeout));
  GS_RETURN_IF_ERROR(contestant.StartRanks(
      options, {options.rank_binary, files->flag(), absl::StrCat("--world_size=", options.ranks)}));
  // "gradsync ring 0 shm", "gradsync local 0 "
  GS_ASSIGN_OR_RETURN(const std::string library, contestant.AwaitReady());
  const std::vector<std::string> words = absl::StrSplit(library, ' ');
  int servers = 0;
  if (words.size() != 4 || !absl::SimpleAtoi(words[2], &servers)) {
    return absl::DataLossError(
        absl::StrCat("expected topology, number of servers and link, found \"", library, "\""));
  }
  const std::string& link = words[3];
  contestant.name_ = absl::StrCat("gradsync ", words[1], link.empty() ? "" : "/", link);
  if (row.bucket_bytes != 0) {
    absl::StrAppend(&contestant.name_, " ", FormatBytes(row.bucket_bytes));
  }
  if (row.eager) absl::StrAppend(&contestant.name_, " eager");
  contestant.run_.set_library("gradsync");
  contestant.run_.set_row(contestant.name_);
  GS_RETURN_IF_ERROR(
      CheckRanAsAsked(row.spec, BackendWords{words[1], link, UpdateSiteName(row.spec.update)}));
  contestant.run_.set_topology(words[1]);
  contestant.run_.set_link(link);
  if (servers > 0) contestant.run_.set_placement(PlacementName(Placement::kColocated));
  contestant.run_.set_servers(servers);
  contestant.run_.set_bucket_bytes(static_cast<double>(row.bucket_bytes));
  return contestant;
}

absl::StatusOr<TrainingContestant> TrainingContestant::StartPyTorch(
    const PeerTrainingOptions& options, const PyTorchRow& row) {
  TrainingContestant contestant;
  const bool ddp = options.synchronises();
  contestant.name_ = row.name;
  contestant.timeout_ = options.peer_timeout;
  contestant.meets_ = ddp;
  contestant.over_nccl_ = options.compute.on_gpu() && row.backend != LinkName(Link::kGloo);
  std::vector<std::string> command = {
      options.python, options.script, absl::StrCat("--pixels=", options.pixels),
      absl::StrCat("--settings=", row.settings), absl::StrCat("--backend=", row.backend)};
  Append(
      {absl::StrCat("--model=", options.model), absl::StrCat("--batch_size=", options.batch_size),
       absl::StrCat("--threads=", options.threads), absl::StrCat("--world_size=", options.ranks)},
      &command);
  Append(WorkerComputeFlags(PythonCompute(options.compute)), &command);
  GS_RETURN_IF_ERROR(contestant.StartRanks(options, std::move(command)));
  GS_ASSIGN_OR_RETURN(const std::string versions, contestant.AwaitReady());
  contestant.run_.set_library(ddp ? "pytorch_ddp" : "pytorch");
  contestant.run_.set_row(row.name);
  contestant.run_.set_topology(TopologyName(ddp ? Topology::kRing : Topology::kLocal));
  if (ddp) contestant.run_.set_link(LinkName(contestant.over_nccl_ ? Link::kNccl : Link::kGloo));
  contestant.run_.set_settings(absl::StrCat(
      versions, contestant.run_.settings().empty() ? "" : ": ", contestant.run_.settings()));
  return contestant;
}

absl::Status TrainingContestant::StartRanks(const PeerTrainingOptions& options,
                                            std::vector<std::string> command) {
  if (over_nccl_) {
    GS_ASSIGN_OR_RETURN(nccl_log_, NcclLog::ForLink(Link::kNccl, options.environment));
  }
  const bool shared = over_nccl_ && options.ranks_per_gpu > 1;
  if (shared) run_.set_invalid(SharedGpuNote(options.ranks_per_gpu));
  const Deadline deadline = NewDeadline();
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::vector<std::string> environment;
    if (shared) environment = SharedGpuEnvironment(rank);
    if (rank == 0 && nccl_log_.has_value()) Append(nccl_log_->environment(), &environment);
    std::vector<std::string> own = command;
    own.push_back(absl::StrCat("--rank=", rank));
    if (options.compute.on_gpu()) {
      own.push_back(absl::StrCat("--local_rank=", GpuOf(rank, options.ranks_per_gpu)));
    }
    GS_ASSIGN_OR_RETURN(ranks_.emplace_back(), InteractiveProcess::Start(own, environment));
    if (!meets_ || rank != 0) continue;
    GS_ASSIGN_OR_RETURN(const std::string line, ReadAnswer(IsStore, deadline, ranks_[0].get()));
    command.push_back(absl::StrCat("--master=", absl::StripPrefix(line, "store ")));
  }
  return absl::OkStatus();
}

// Reads the line with which each rank says that it is ready: "ready LIBRARY AND VERSIONS|DEVICE|
// NCCL'S VERSION|WHAT NCCL WAS ASKED FOR|SETTINGS". Returns the first part.
absl::StatusOr<std::string> TrainingContestant::AwaitReady() {
  std::string library;
  std::vector<std::string> devices;
  const Deadline deadline = NewDeadline();
  for (const auto& rank : ranks_) {
    GS_ASSIGN_OR_RETURN(const std::string line, ReadAnswer(IsReady, deadline, rank.get()));
    const std::vector<std::string> parts = absl::StrSplit(line, '|');
    if (parts.size() != 5) return absl::DataLossError(line);
    library = std::string(absl::StripPrefix(parts[0], "ready "));
    devices.push_back(parts[1]);
    run_.set_nccl_version(parts[2]);
    run_.set_nccl_asked(parts[3]);
    SetSettings(parts[4]);
  }
  run_.set_device(NameDevices(devices));
  return library;
}

void TrainingContestant::SetSettings(const std::string& settings) {
  run_.set_settings(settings);
  for (absl::string_view setting : absl::StrSplit(settings, ' ')) {
    int threads = 0;
    if (setting == "cudnn_benchmark") run_.set_cudnn_benchmark(true);
    if (absl::ConsumePrefix(&setting, "loader_threads=") && absl::SimpleAtoi(setting, &threads)) {
      run_.set_loader_threads(threads);
    }
  }
}

void TrainingContestant::AddNote(const std::string& note) {
  run_.set_settings(absl::StrCat(run_.settings(), " (", note, ")"));
}

absl::StatusOr<double> TrainingContestant::TakeTurn(int steps) {
  for (const auto& rank : ranks_) GS_RETURN_IF_ERROR(rank->WriteLine(absl::StrCat(steps)));
  double begin = std::numeric_limits<double>::infinity();
  double end = 0;
  const Deadline deadline = NewDeadline();
  for (const auto& rank : ranks_) {
    GS_ASSIGN_OR_RETURN(const std::string line, ReadAnswer(IsTurn, deadline, rank.get()));
    const Turn turn = *ParseTurn(line);
    begin = std::min(begin, turn.first);
    end = std::max(end, turn.second);
  }
  return (end - begin) * 1e-3 / steps;
}

absl::StatusOr<TrainingContestant> StartFastest(
    const PeerTrainingOptions& options, const PyTorchRow& row,
    const std::function<void(absl::string_view)>& progress) {
  std::vector<std::string> all = {row.settings};
  all.insert(all.end(), row.other_settings.begin(), row.other_settings.end());
  absl::StatusOr<TrainingContestant> best;  // until one runs, why the first one does not
  for (size_t i = 0; i < all.size(); ++i) {
    PyTorchRow tried = row;
    tried.settings = all[i];
    absl::StatusOr<TrainingContestant> challenger =
        TrainingContestant::StartPyTorch(options, tried);
    if (!challenger.ok()) {
      progress(absl::StrCat("trying ", row.name, " ", all[i], ": ", challenger.status().message()));
    }
    const bool wins = challenger.ok() &&
                      (!best.ok() || Wins(options.steps_per_round, progress, &*challenger, &*best));
    if (wins || i == 0) best = std::move(challenger);
  }
  if (best.ok() && all.size() > 1) best->AddNote(absl::StrCat("fastest of ", all.size()));
  return best;
}

}  // namespace gradsync
