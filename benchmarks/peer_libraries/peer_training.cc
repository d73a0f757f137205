#include "benchmarks/peer_libraries/peer_training.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "benchmarks/options/shared_gpu.h"
#include "benchmarks/peer_libraries/fastest_setting.h"
#include "benchmarks/peer_libraries/training_contestant.h"
#include "benchmarks/peer_libraries/training_report.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

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
