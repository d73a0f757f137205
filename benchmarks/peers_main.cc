// Other libraries beside ours, interleaved in one run.
//
//   bazel run //benchmarks:peers -- --train --model=resnet18 --batch_size=128 --threads=2
//   bazel run //benchmarks:peers -- --train --model=resnet18 --batch_size=64 --threads=1 --ranks=2
//
// --train: gradsync beside Python PyTorch, with one rank; with more, the ring over shared memory
// beside as many processes that do not synchronise, and beside PyTorch DDP (peer_training.h).
// Python PyTorch is Debian's python3-torch and python3-torchvision, the same LibTorch.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/flag_error.h"
#include "base/flags.h"
#include "base/status_macros.h"
#include "base/write_file.h"
#include "benchmarks/flag_checks.h"
#include "benchmarks/machine_info.h"
#include "benchmarks/peer_training.h"
#include "benchmarks/proto_json.h"
#include "tools/runfiles.h"

ABSL_FLAG(bool, train, false, "compare training with Python PyTorch's");
ABSL_FLAG(std::string, model, "resnet18", "resnet18 or resnet50");
ABSL_FLAG(int, batch_size, 128, "samples per rank and step");
ABSL_FLAG(int, threads, 2, "compute threads of each rank");
ABSL_FLAG(int, ranks, 1, "processes of each contestant");
ABSL_FLAG(int, rounds, 15, "turns of each");
ABSL_FLAG(int, steps_per_round, 3, "steps in a turn");
ABSL_FLAG(std::string, json, "", "file for the records (proto/run_record.proto)");
ABSL_FLAG(std::string, python, "/usr/bin/python3", "the Python that has torch and torchvision");

namespace gradsync {
namespace {

std::string UserPath(const std::string& path) {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  return ResolvePath(path, directory == nullptr ? "" : directory);
}

std::string CommandLine(int argc, char** argv) {
  std::string command = "bazel run //benchmarks:peers";
  for (int i = 1; i < argc; ++i) absl::StrAppend(&command, i == 1 ? " -- " : " ", argv[i]);
  return command;
}

absl::Status CheckFlags() {
  if (!absl::GetFlag(FLAGS_train)) {
    return absl::InvalidArgumentError("--train: expected it; there is no other comparison yet");
  }
  GS_RETURN_IF_ERROR(CheckNames("model", {absl::GetFlag(FLAGS_model)}, {"resnet18", "resnet50"}));
  const std::vector<std::pair<const char*, int>> counts = {
      {"batch_size", absl::GetFlag(FLAGS_batch_size)},
      {"threads", absl::GetFlag(FLAGS_threads)},
      {"ranks", absl::GetFlag(FLAGS_ranks)},
      {"rounds", absl::GetFlag(FLAGS_rounds)},
      {"steps_per_round", absl::GetFlag(FLAGS_steps_per_round)}};
  for (const auto& [flag, value] : counts) {
    if (value < 1) return FlagError(flag, "at least 1", absl::StrCat(value));
  }
  return absl::OkStatus();
}

absl::Status WriteRecords(const std::string& path, const proto::RunRecords& records) {
  GS_ASSIGN_OR_RETURN(const std::string json, ToJson(records));
  return WriteFileAtomically(path, json);
}

absl::Status Run(int argc, char** argv) {
  GS_RETURN_IF_ERROR(CheckFlags());
  PeerTrainingOptions options;
  options.model = absl::GetFlag(FLAGS_model);
  options.ranks = absl::GetFlag(FLAGS_ranks);
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.rounds = absl::GetFlag(FLAGS_rounds);
  options.steps_per_round = absl::GetFlag(FLAGS_steps_per_round);
  options.python = absl::GetFlag(FLAGS_python);
  GS_ASSIGN_OR_RETURN(options.script, FindRunfile(argv[0], "benchmarks/pytorch_train.py"));
  GS_ASSIGN_OR_RETURN(options.rank_binary, FindRunfile(argv[0], "benchmarks/train_rank"));
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine();
  records.set_command(CommandLine(argc, argv));
  GS_ASSIGN_OR_RETURN(const std::vector<proto::Run> runs, RunPeerTraining(options));
  for (const proto::Run& run : runs) *records.add_runs() = run;
  if (absl::GetFlag(FLAGS_json).empty()) return absl::OkStatus();
  return WriteRecords(UserPath(absl::GetFlag(FLAGS_json)), records);
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::ParseFlagsOrExit(argc, argv,
                             {"peers --train: other libraries beside gradsync, in one run."});
  const absl::Status status = gradsync::Run(argc, argv);
  if (status.ok()) return 0;
  std::fprintf(stderr, "peers: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}
