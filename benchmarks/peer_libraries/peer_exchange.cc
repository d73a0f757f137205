#include "benchmarks/peer_libraries/peer_exchange.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/options/flag_checks.h"
#include "benchmarks/peer_libraries/peer_job.h"
#include "benchmarks/peer_libraries/peer_report.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int kMostRanks = 64;

// As many servers as ranks, as ours have. -sS: not with what else is installed, which would be
// imported with a NumPy that it was not built for.
std::vector<std::string> TensorFlowCommand(const PeerPrograms& programs, int ranks) {
  return {"/usr/bin/python3", "-sS", programs.tensorflow_ps, absl::StrCat("--ranks=", ranks),
          absl::StrCat("--servers=", ranks)};
}

int DefaultIterations(int64_t bytes, bool ranks_share_cores) {
  const int64_t most = ranks_share_cores ? 50 : 500;
  return static_cast<int>(std::clamp<int64_t>((int64_t{32} << 20) / bytes, 5, most));
}

class Tournament {
 public:
  Tournament(const PeerPrograms& programs, const PeerCase& peer_case, int rounds,
             const std::function<void(absl::string_view)>& progress)
      : programs_(programs),
        progress_(progress),
        rounds_(rounds),
        tensorflow_(TensorFlowCommand(programs, peer_case.job.exchange.world_size),
                    {absl::StrCat("PYTHONPATH=", programs.installed_folder, "/tensorflow")},
                    absl::StrCat(programs.installed_folder, "/tensorflow/installed")),
        job_(peer_case.job) {
    job_.standing = &tensorflow_;
    for (const Contestant& contestant : peer_case.contestants) {
      ContestantResult result;
      result.contestant = contestant;
      result.run.set_workers(job_.exchange.world_size);
      result.run.set_bytes(static_cast<double>(job_.exchange.bytes));
      results_.push_back(std::move(result));
    }
  }

  absl::StatusOr<PeerOutcome> Run() {
    for (ContestantResult& result : results_) GS_RETURN_IF_ERROR(ChooseSetting(&result));
    for (int round = 0; round < rounds_; ++round) {
      for (size_t i = 0; i < results_.size(); ++i) {
        GS_RETURN_IF_ERROR(PlayRound(round, &results_[(i + round) % results_.size()]));
      }
      progress_(absl::StrCat("round ", round + 1, " of ", rounds_));
    }
    PeerOutcome outcome;
    outcome.records = PeerRecords(results_);
    outcome.table = PeerTable(results_, outcome.records);
    outcome.ours_failure = ours_failure_;
    for (const ContestantResult& result : results_) outcome.wrong += result.run.wrong();
    return outcome;
  }

 private:
  // Leaves the fastest of the settings that run and are right, or the failure of the first when
  // none does.
  absl::Status ChooseSetting(ContestantResult* result) {
    double best = 0;
    PeerSetting chosen;
    std::string failure;
    for (const PeerSetting& setting : result->contestant.settings) {
      const absl::StatusOr<proto::Run> run =
          RunPeerJob(programs_, result->contestant, setting, job_);
      if (absl::IsCancelled(run.status())) return run.status();
      const std::string name =
          absl::StrCat("trying ", result->contestant.name, " ", DescribeSetting(setting), ": ");
      if (!run.ok()) {
        progress_(absl::StrCat(name, run.status().message()));
        if (failure.empty()) failure = NoteFailure(*result, run.status());
        if (absl::IsNotFound(run.status())) break;
        continue;
      }
      // Some algorithms of some libraries are wrong for some numbers of ranks; another one will do.
      if (run->wrong() > 0 && result->contestant.role != PeerRole::kOurs) {
        const std::string wrong = absl::StrCat(run->wrong(), " elements are wrong");
        progress_(absl::StrCat(name, wrong));
        if (failure.empty()) failure = wrong;
        continue;
      }
      result->run.set_wrong(result->run.wrong() + run->wrong());
      progress_(absl::StrCat(name, absl::StrFormat("%.3f ms", run->time_us_p50() * 1e-3)));
      if (best == 0 || run->time_us_p50() < best) {
        best = run->time_us_p50();
        chosen = setting;
      }
    }
    if (best == 0) {
      result->run.set_failure(failure);
    } else {
      result->contestant.settings = {chosen};
    }
    return absl::OkStatus();
  }

  absl::Status PlayRound(int round, ContestantResult* result) {
    if (!result->run.failure().empty()) return absl::OkStatus();
    const absl::StatusOr<proto::Run> run =
        RunPeerJob(programs_, result->contestant, result->contestant.settings[0], job_);
    if (absl::IsCancelled(run.status())) return run.status();
    if (!run.ok()) {
      result->run.set_failure(
          absl::StrCat("round ", round + 1, ": ", NoteFailure(*result, run.status())));
      progress_(absl::StrCat(result->contestant.name, ": ", result->run.failure()));
      return absl::OkStatus();
    }
    const double wrong = result->run.wrong() + run->wrong();
    if (result->run.round_us().empty()) result->run = *run;
    result->run.add_round_us(run->time_us_p50());
    result->run.set_wrong(wrong);
    return absl::OkStatus();
  }

  // Returns the message. One of ours must not fail, but may refuse.
  std::string NoteFailure(const ContestantResult& result, const absl::Status& status) {
    const bool ours = result.contestant.role == PeerRole::kOurs;
    if (ours && !absl::IsInvalidArgument(status) && ours_failure_.empty()) {
      ours_failure_ = absl::StrCat(result.contestant.name, ": ", status.message());
    }
    return std::string(status.message());
  }

  const PeerPrograms& programs_;
  const std::function<void(absl::string_view)>& progress_;
  const int rounds_;
  StandingPeer tensorflow_;
  PeerJob job_;
  std::vector<ContestantResult> results_;
  std::string ours_failure_;
};

}  // namespace

absl::StatusOr<std::vector<PeerCase>> ListPeerCases(const PeerExchangeOptions& options, int cores) {
  GS_RETURN_IF_ERROR(CheckAtLeast("rounds", 1, options.rounds));
  GS_RETURN_IF_ERROR(CheckAtLeast("iterations", 0, options.job.exchange.iterations));
  GS_RETURN_IF_ERROR(CheckAtLeast("warmup", -1, options.job.exchange.warmup));
  GS_RETURN_IF_ERROR(CheckTimeout(options.job.exchange.timeout));
  const std::string expected = absl::StrCat("numbers from 2 to ", kMostRanks, ", such as 2,4");
  if (options.workers.empty()) return FlagError("workers", expected, "");
  if (options.bytes.empty()) return FlagError("bytes", "sizes such as 25MiB,102.4MB", "");
  std::vector<PeerCase> cases;
  for (const std::string& ranks : options.workers) {
    PeerCase next;
    next.job = options.job;
    ExchangeOptions& exchange = next.job.exchange;
    if (!absl::SimpleAtoi(ranks, &exchange.world_size) || exchange.world_size < 2 ||
        exchange.world_size > kMostRanks) {
      return FlagError("workers", expected, ranks);
    }
    GS_ASSIGN_OR_RETURN(next.contestants,
                        SelectContestants(options.contestants, exchange.world_size, cores));
    for (const std::string& bytes : options.bytes) {
      GS_ASSIGN_OR_RETURN(exchange.bytes, ParseSize("bytes", bytes));
      if (exchange.bytes % 4 != 0)
        return FlagError("bytes", "multiples of 4, the size of a float", bytes);
      // MPI counts elements with an int.
      if (exchange.bytes > (int64_t{1} << 32)) return FlagError("bytes", "at most 4GiB", bytes);
      const ExchangeOptions& asked = options.job.exchange;
      exchange.iterations = asked.iterations > 0
                                ? asked.iterations
                                : DefaultIterations(exchange.bytes, exchange.world_size > cores);
      exchange.warmup = asked.warmup >= 0 ? asked.warmup : std::max(2, exchange.iterations / 10);
      cases.push_back(next);
    }
  }
  return cases;
}

absl::StatusOr<PeerOutcome> MeasurePeerCase(
    const PeerPrograms& programs, const PeerCase& peer_case, int rounds,
    const std::function<void(absl::string_view)>& progress) {
  return Tournament(programs, peer_case, rounds, progress).Run();
}

}  // namespace gradsync
