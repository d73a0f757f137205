// Other libraries beside ours, interleaved in one run.
//
//   bazel run //benchmarks:peers -- --train --model=resnet18 --batch_size=128 --threads=2
//
// --train: one process trains a ResNet with gradsync (topology local), another with Python PyTorch and torchvision (Debian's
// python3-torch, the same LibTorch); they take turns of a few steps, so that the machine's drift hits both alike. Printed are
// the medians and the ratio of samples per second, ours over theirs, turn by turn, with the 95 % interval of its median.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/status_macros.h"
#include "benchmarks/interactive_process.h"
#include "sync/local_sync.h"
#include "sync/side_channel.h"
#include "tools/runfiles.h"
#include "train/trainer.h"

ABSL_FLAG(bool, train, false, "compare the training of one process with Python PyTorch's");
ABSL_FLAG(std::string, model, "resnet18", "resnet18 or resnet50");
ABSL_FLAG(int, batch_size, 128, "samples per step");
ABSL_FLAG(int, threads, 2, "compute threads of each process");
ABSL_FLAG(int, rounds, 15, "turns of each");
ABSL_FLAG(int, steps_per_round, 3, "steps in a turn");
ABSL_FLAG(std::string, python, "/usr/bin/python3", "the Python that has torch and torchvision");

namespace gradsync {
namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Distribution-free 95 % interval of the median, from order statistics (normal approximation of the binomial).
std::pair<double, double> MedianInterval(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double n = static_cast<double>(values.size());
  const double half = 1.96 * std::sqrt(n) / 2;
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - half)));
  const auto high = static_cast<size_t>(std::min(n - 1, std::ceil(n / 2 + half)));
  return {values[low], values[high]};
}

// One turn of the peer: milliseconds of each step.
absl::StatusOr<std::vector<double>> PeerTurn(InteractiveProcess& peer, int steps) {
  GS_RETURN_IF_ERROR(peer.WriteLine(absl::StrCat(steps)));
  GS_ASSIGN_OR_RETURN(const std::string line, peer.ReadLine());
  std::vector<double> times;
  for (absl::string_view word : absl::StrSplit(line, ' ')) {
    double ms = 0;
    if (!absl::SimpleAtod(word, &ms)) {
      return absl::DataLossError(absl::StrCat("the peer said \"", line, "\", expected times"));
    }
    times.push_back(ms);
  }
  return times;
}

struct Turns {
  std::vector<double> ours;    // median step of each turn, ms
  std::vector<double> theirs;  // likewise
};

absl::StatusOr<Turns> RunTurns(InteractiveProcess& peer) {
  const int per_round = absl::GetFlag(FLAGS_steps_per_round);
  TrainerOptions options;
  options.model.name = absl::GetFlag(FLAGS_model);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.threads = absl::GetFlag(FLAGS_threads);
  // The first turn warms up on both sides.
  options.steps = per_round * (absl::GetFlag(FLAGS_rounds) + 1);
  options.synchronised = false;
  options.recipe.base = 0.05;
  OptimizerGroup group;
  group.momentum = 0.9;
  group.weight_decay = 5e-4;
  options.optimizer.groups = {group};

  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(options, 0, 1));
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  SideChannel side_channel(WorkerGroup(), "peers");
  GS_RETURN_IF_ERROR(trainer->Bind(sync.get(), &side_channel));
  Turns turns;
  absl::Status peer_status;
  std::vector<double> turn;
  const auto on_step = [&](const StepReport& report) {
    turn.push_back(absl::ToDoubleMilliseconds(report.times.total));
    if (static_cast<int>(turn.size()) < per_round || !peer_status.ok()) return;
    const absl::StatusOr<std::vector<double>> theirs = PeerTurn(peer, per_round);
    peer_status = theirs.status();
    if (theirs.ok() && report.step > per_round) {
      turns.ours.push_back(Median(turn));
      turns.theirs.push_back(Median(*theirs));
      std::printf("turn %2zu/%d: gradsync %.1f ms, pytorch %.1f ms\n", turns.ours.size(),
                  absl::GetFlag(FLAGS_rounds), turns.ours.back(), turns.theirs.back());
      std::fflush(stdout);
    }
    turn.clear();
  };
  GS_RETURN_IF_ERROR(trainer->Run(on_step).status());
  GS_RETURN_IF_ERROR(peer_status);
  return turns;
}

absl::Status CompareTraining(const std::string& script) {
  GS_ASSIGN_OR_RETURN(
      const std::unique_ptr<InteractiveProcess> peer,
      InteractiveProcess::Start({absl::GetFlag(FLAGS_python),
                                 script,
                                 absl::StrCat("--model=", absl::GetFlag(FLAGS_model)),
                                 absl::StrCat("--batch_size=", absl::GetFlag(FLAGS_batch_size)),
                                 absl::StrCat("--threads=", absl::GetFlag(FLAGS_threads))}));
  GS_ASSIGN_OR_RETURN(const std::string versions, peer->ReadLine());
  if (absl::StrContains(versions, "cannot run")) return absl::UnavailableError(versions);
  std::printf("peer: Python PyTorch, %s\n%s, batch %d, %d threads each, turns of %d steps\n",
              versions.c_str(), absl::GetFlag(FLAGS_model).c_str(),
              absl::GetFlag(FLAGS_batch_size), absl::GetFlag(FLAGS_threads),
              absl::GetFlag(FLAGS_steps_per_round));
  GS_ASSIGN_OR_RETURN(const Turns turns, RunTurns(*peer));
  std::vector<double> ratios;
  for (size_t i = 0; i < turns.ours.size(); ++i) ratios.push_back(turns.theirs[i] / turns.ours[i]);
  const auto [low, high] = MedianInterval(ratios);
  const double batch = absl::GetFlag(FLAGS_batch_size);
  std::printf("gradsync %.1f samples/s, pytorch %.1f samples/s\n", 1e3 * batch / Median(turns.ours),
              1e3 * batch / Median(turns.theirs));
  std::printf("ratio gradsync/pytorch: %.3f, 95 %% interval %.3f to %.3f (median of %zu turns)\n",
              Median(ratios), low, high, ratios.size());
  return absl::OkStatus();
}

absl::Status Run(const char* argv0) {
  if (!absl::GetFlag(FLAGS_train)) {
    return absl::InvalidArgumentError("--train: expected it; there is no other comparison yet");
  }
  for (int value : {absl::GetFlag(FLAGS_batch_size), absl::GetFlag(FLAGS_threads),
                    absl::GetFlag(FLAGS_rounds), absl::GetFlag(FLAGS_steps_per_round)}) {
    if (value < 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--batch_size, --threads, --rounds, --steps_per_round: expected at least 1, found ",
          value));
    }
  }
  GS_ASSIGN_OR_RETURN(const std::string script,
                      FindRunfile(argv0, "benchmarks/pytorch_train.py"));
  return CompareTraining(script);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv,
                             {"peers --train: other libraries beside gradsync, in one run."});
  const absl::Status status = gradsync::Run(argv[0]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "peers: %s\n", status.ToString().c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}
