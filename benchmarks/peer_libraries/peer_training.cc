#include "benchmarks/peer_libraries/peer_training.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "benchmarks/options/placed_job.h"
#include "benchmarks/peer_libraries/peer_ratio.h"
#include "benchmarks/peer_libraries/training_contestant.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/run_job.h"
#include "benchmarks/records/terminal.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

bool Ran(const TrainingOutcome& outcome) { return outcome.run.failure().empty(); }
bool Ours(const proto::Run& run) { return run.library() == "gradsync"; }
// Whether its ranks do.
bool Meets(const proto::Run& run) { return SpecOf(run).topology != Topology::kLocal; }
double Median(const TrainingOutcome& outcome) { return Percentile(outcome.step_ms, 0.5); }

proto::PeerRatio RatioOf(const TrainingOutcome& ours, const TrainingOutcome& theirs) {
  return RatioTo(theirs.run.row(), ours.step_ms, theirs.step_ms);
}

proto::Run Record(const TrainingOutcome& outcome, absl::Span<const TrainingOutcome> all) {
  proto::Run run = outcome.run;
  if (!Ran(outcome)) return run;
  run.set_step_ms_p50(Median(outcome));
  run.set_step_ms_p10(Percentile(outcome.step_ms, 0.1));
  run.set_step_ms_p90(Percentile(outcome.step_ms, 0.9));
  run.set_samples_per_s(1e3 * run.batch_size() * run.workers() / run.step_ms_p50());
  if (!Ours(run)) {
    run.set_peer_ratio(RatioOf(all[0], outcome).p50());
    return run;
  }
  for (const TrainingOutcome& other : all) {
    if (!Ours(other.run) && Ran(other)) *run.add_peer_ratios() = RatioOf(outcome, other);
  }
  if (const TrainingOutcome* best = BestPeer(all)) {
    *run.add_peer_ratios() = RatioTo(kBestPeer, outcome.step_ms, best->step_ms);
    run.set_peer_ratio(run.peer_ratios().rbegin()->p50());
  }
  return run;
}

std::string Format(const proto::PeerRatio& ratio, size_t rounds) {
  return absl::StrFormat("%.3f (%.3f to %.3f: %s)", ratio.p50(), ratio.low(), ratio.high(),
                         DescribeInterval(static_cast<int>(rounds)));
}

std::string Rate(const TrainingOutcome& ours, const TrainingOutcome& theirs) {
  return absl::StrCat("samples/s of ", ours.run.row(), " over ", theirs.run.row(), ": ",
                      Format(RatioOf(ours, theirs), ours.step_ms.size()));
}

bool OverNccl(const TrainingOutcome& outcome) { return SpecOf(outcome.run).link == Link::kNccl; }

// What tells `other` of ours from the first one; two rings over one link differ in bucket sizes.
std::string WhatIsCompared(const TrainingOutcome& first, const TrainingOutcome& other) {
  if (OverNccl(first) != OverNccl(other)) {
    return ", a comparison of transports (NCCL between GPUs, or through the host), not of "
           "topologies";
  }
  if (first.run.topology() != other.run.topology()) {
    return first.run.link() == other.run.link() ? ", a comparison of topologies"
                                                : ", a comparison of topologies and links";
  }
  return first.run.link() == other.run.link() ? "" : ", a comparison of links";
}

// Every two of ours: the first beside the later ones.
std::string AmongOurs(absl::Span<const TrainingOutcome> outcomes) {
  std::string text;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    for (size_t j = i + 1; j < outcomes.size(); ++j) {
      const TrainingOutcome& a = outcomes[i];
      const TrainingOutcome& b = outcomes[j];
      if (!Ours(a.run) || !Ours(b.run) || !Ran(a) || !Ran(b)) continue;
      if (!Meets(a.run) || !Meets(b.run)) continue;
      absl::StrAppend(&text, Rate(a, b), WhatIsCompared(a, b), "\n");
    }
  }
  return text;
}

std::string Sentences(absl::Span<const TrainingOutcome> outcomes) {
  const TrainingOutcome& first = outcomes[0];
  std::string text;
  for (const TrainingOutcome& other : outcomes) {
    const bool local = &other != &first && Ours(other.run) && !Meets(other.run);
    if (!local || !Ran(other)) continue;
    absl::StrAppend(&text, "step of ", first.run.row(), " over ", other.run.row(), ": ",
                    Format(RatioOf(other, first), first.step_ms.size()), "\n");
  }
  absl::StrAppend(&text, AmongOurs(outcomes));
  if (const TrainingOutcome* best = BestPeer(outcomes)) {
    absl::StrAppend(&text, Rate(first, *best), ", PyTorch's best row\n");
  }
  return text;
}

std::string Notes(const proto::Run& run) {
  if (!run.failure().empty()) return absl::StrCat(run.row(), ": ", run.failure(), "\n");
  std::string notes;
  if (!run.settings().empty()) notes = absl::StrCat(run.row(), ": ", run.settings(), "\n");
  if (!run.nccl_version().empty()) {
    absl::StrAppend(&notes, run.row(), ": NCCL ", run.nccl_version(), ", asked for ",
                    run.nccl_asked().empty() ? "nothing" : run.nccl_asked(), ", chose ",
                    run.nccl_chosen(), "\n");
  }
  if (!run.invalid().empty()) {
    absl::StrAppend(&notes, "INVALID: ", run.row(), ": ", run.invalid(), "\n");
  }
  return notes;
}

constexpr int kFirstTurn = 3;  // steps

void PrintLine(absl::string_view line) {
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

struct Participant {
  absl::optional<TrainingContestant> contestant;  // none: it failed
  TrainingOutcome outcome;
};

Participant Starting(TrainingContestant contestant) {
  Participant participant;
  participant.outcome.run = contestant.run();
  participant.contestant = std::move(contestant);
  return participant;
}

// Its processes end, so that others have their memory.
void Fail(const absl::Status& status, Participant* participant) {
  proto::Run& run = participant->outcome.run;
  run.set_failure(std::string(status.message()));
  participant->contestant.reset();
  PrintLine(absl::StrCat(run.row(), ": ", run.failure()));
}

absl::StatusOr<std::vector<Participant>> StartAll(const PeerTrainingOptions& options) {
  std::vector<Participant> all;
  for (const OurRow& row : OurRows(options)) {
    GS_ASSIGN_OR_RETURN(TrainingContestant ours, TrainingContestant::StartOurs(options, row));
    // On a GPU it takes the memory that it needs before PyTorch's take theirs, in their warm-up.
    if (options.compute.on_gpu()) GS_RETURN_IF_ERROR(ours.TakeTurn(kFirstTurn).status());
    all.push_back(Starting(std::move(ours)));
  }
  for (const PyTorchRow& row : PyTorchRows(options)) {
    absl::StatusOr<TrainingContestant> pytorch = StartFastest(options, row, PrintLine);
    if (pytorch.ok()) {
      PrintLine(absl::StrCat(row.name, ": ", pytorch->run().settings()));
      all.push_back(Starting(*std::move(pytorch)));
      continue;
    }
    Participant& failed = all.emplace_back();
    failed.outcome.run.set_library(options.synchronises() ? "pytorch_ddp" : "pytorch");
    failed.outcome.run.set_row(row.name);
    Fail(pytorch.status(), &failed);
  }
  return all;
}

// One turn of one contestant. Only a failure of ours is an error.
absl::Status TakeTurn(int steps, bool measured, Participant* participant) {
  if (!participant->contestant.has_value()) return absl::OkStatus();
  const absl::StatusOr<double> ms = participant->contestant->TakeTurn(steps);
  if (ms.ok()) {
    if (measured) participant->outcome.step_ms.push_back(*ms);
    return absl::OkStatus();
  }
  if (participant->outcome.run.library() == "gradsync") return ms.status();
  Fail(ms.status(), participant);
  return absl::OkStatus();
}

absl::Status TakeTurns(const PeerTrainingOptions& options, std::vector<Participant>* all) {
  const size_t count = all->size();
  for (int round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      GS_RETURN_IF_ERROR(
          TakeTurn(options.steps_per_round, /*measured=*/round > 0, &(*all)[(i + round) % count]));
    }
    if (round == 0) continue;
    std::string line = absl::StrFormat("round %2d/%d:", round, options.rounds);
    for (const Participant& participant : *all) {
      if (!participant.contestant.has_value()) continue;
      absl::StrAppendFormat(&line, "  %s %.1f ms", participant.outcome.run.row(),
                            participant.outcome.step_ms.back());
    }
    PrintLine(line);
  }
  return absl::OkStatus();
}

// What all have in common.
void Fill(const PeerTrainingOptions& options, Participant* participant) {
  proto::Run& run = participant->outcome.run;
  run.set_update("worker");
  run.set_workers(options.ranks);
  run.set_model(options.model);
  run.set_data(DataOf(options));
  run.set_precision(PrecisionName(options.compute.precision));
  run.set_channels_last(options.compute.channels_last);
  run.set_tf32(options.compute.tf32);
  run.set_batch_size(options.batch_size);
  run.set_threads(options.threads);
  run.set_steps(options.rounds * options.steps_per_round);
  if (participant->contestant.has_value()) {
    run.set_nccl_chosen(participant->contestant->NcclChosen());
  }
}

}  // namespace

const TrainingOutcome* BestPeer(absl::Span<const TrainingOutcome> outcomes) {
  const TrainingOutcome* best = nullptr;
  for (const TrainingOutcome& outcome : outcomes) {
    if (Ours(outcome.run) || !Ran(outcome)) continue;
    if (best == nullptr || Median(outcome) < Median(*best)) best = &outcome;
  }
  return best;
}

std::vector<proto::Run> TrainingRecords(absl::Span<const TrainingOutcome> outcomes) {
  std::vector<proto::Run> records;
  for (const TrainingOutcome& outcome : outcomes) records.push_back(Record(outcome, outcomes));
  return records;
}

std::string TrainingTable(absl::Span<const TrainingOutcome> outcomes,
                          absl::Span<const proto::Run> records) {
  std::vector<Column> columns = {{"", Align::kLeft}, {"step ms\n(p10-p90)"}, {"samples\nper s"}};
  std::vector<const TrainingOutcome*> ours;
  for (const TrainingOutcome& outcome : outcomes) {
    // One that does not synchronise competes where nobody does.
    const bool competes = Meets(outcome.run) || &outcome == &outcomes[0];
    if (!Ours(outcome.run) || !Ran(outcome) || !competes) continue;
    ours.push_back(&outcome);
    columns.push_back({absl::StrCat("time over\n", outcome.run.row())});
  }
  const TrainingOutcome* const best = BestPeer(outcomes);
  std::vector<std::vector<std::string>> rows;
  std::string notes;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const proto::Run& run = records[i];
    absl::StrAppend(&notes, Notes(run));
    if (!Ran(outcomes[i])) {
      rows.push_back({run.row(), "-"});
      continue;
    }
    rows.push_back({absl::StrCat(run.row(), &outcomes[i] == best ? " *" : ""),
                    absl::StrFormat("%.1f (%.1f-%.1f)", run.step_ms_p50(), run.step_ms_p10(),
                                    run.step_ms_p90()),
                    absl::StrFormat("%.1f", run.samples_per_s())});
    for (const TrainingOutcome* mine : ours) {
      const proto::PeerRatio ratio = RatioOf(*mine, outcomes[i]);
      rows.back().push_back(&outcomes[i] == mine ? "1"
                                                 : absl::StrFormat("%.3f (%.3f-%.3f)", ratio.p50(),
                                                                   ratio.low(), ratio.high()));
    }
  }
  return absl::StrCat(
      FormatTable(columns, rows),
      best == nullptr ? "" : "*: PyTorch's best row, with the shortest median step\n", notes,
      Sentences(outcomes));
}

absl::StatusOr<std::vector<proto::Run>> RunPeerTraining(const PeerTrainingOptions& options) {
  GS_ASSIGN_OR_RETURN(std::vector<Participant> all, StartAll(options));
  PrintLine(absl::StrFormat(
      "%s, %s, %s, %s%s, %d ranks, batch %d and %d threads each, turns of %d steps", options.model,
      DataOf(options), all[0].outcome.run.device(), PrecisionName(options.compute.precision),
      options.compute.channels_last ? " channels-last" : "", options.ranks, options.batch_size,
      options.threads, options.steps_per_round));
  if (options.ranks_per_gpu > 1) PrintLine(SharedGpuNote(options.ranks_per_gpu));
  GS_RETURN_IF_ERROR(TakeTurns(options, &all));
  std::vector<TrainingOutcome> outcomes;
  for (Participant& participant : all) {
    Fill(options, &participant);
    outcomes.push_back(participant.outcome);
  }
  std::vector<proto::Run> records = TrainingRecords(outcomes);
  std::printf("\n%s", TrainingTable(outcomes, records).c_str());
  return records;
}

}  // namespace gradsync
