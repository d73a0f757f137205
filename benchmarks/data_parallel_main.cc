// Replicas of a model in one process (//worker --data_parallel), as nn.DataParallel has them, beside
// as many ranks of a ring over shared memory, and beside one process that computes the same parts
// one after the other: where a step's time is, and what device 0 bears. Copy and try:
//
//   bazel run //benchmarks:data_parallel -- --out=data_parallel
//   bazel run //benchmarks:data_parallel -- --out=data_parallel --model=resnet18 --replicas=2 --rounds=5
//
// All jobs with as many parts train on equal samples per step, with equal threads per part. Each is
// measured once in every round, in another order in each. Real processes on this machine; the
// replicas are on its cores, so there should be as many as parts times threads.
//
// Exit codes: 0; 1 a job failed, or ended with other bits than it must; 2 bad flags; 128 + signal
// when interrupted.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/comparison/compare_rounds.h"
#include "benchmarks/comparison/replica_comparison.h"
#include "benchmarks/options/command_line.h"
#include "benchmarks/records/machine_info.h"
#include "benchmarks/records/proto_json.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/program/program_main.h"
#include "tools/local_job.h"
#include "tools/subprocess.h"
#include "worker/models/model_options.h"

ABSL_FLAG(std::vector<std::string>, replicas, gradsync::ReplicaComparison().replicas,
          "numbers of parts of a step: of replicas in one process, and of ranks");
ABSL_FLAG(std::string, model, gradsync::ReplicaComparison().model,
          absl::StrCat("model to train: ", gradsync::ListOfModels()));
ABSL_FLAG(std::string, data, gradsync::ReplicaComparison().data,
          "data to train on, as //worker has it");
ABSL_FLAG(int64_t, batch_size, gradsync::ReplicaComparison().batch_size,
          "samples of a part in a step");
ABSL_FLAG(int, threads, gradsync::ReplicaComparison().threads,
          "compute threads of a replica, or of a rank");
ABSL_FLAG(int64_t, steps, gradsync::ReplicaComparison().steps, "optimizer steps of each job");
ABSL_FLAG(int64_t, warmup_steps, gradsync::ReplicaComparison().warmup_steps,
          "steps at the start of each job that are not measured");
ABSL_FLAG(int, rounds, gradsync::ReplicaComparison().rounds, "how often each job is measured");
ABSL_FLAG(uint64_t, seed, 0, "seed of initial weights and data");
ABSL_FLAG(absl::Duration, timeout, gradsync::ReplicaComparison().timeout,
          "longest wait for other processes, at the start and in a step");
ABSL_FLAG(std::string, out, "data_parallel", "folder for data_parallel.json");
ABSL_FLAG(std::string, worker_binary, "",
          "program that workers run; empty: the //worker of this build");

namespace gradsync {
namespace {

constexpr char kUsage[] =
    "data_parallel [flags]: replicas of a model in one process beside as many ranks.";
constexpr int kBadInput = 2;

ReplicaComparison ComparisonFromFlags() {
  ReplicaComparison comparison;
  comparison.replicas = absl::GetFlag(FLAGS_replicas);
  comparison.model = absl::GetFlag(FLAGS_model);
  comparison.data = UserData(absl::GetFlag(FLAGS_data));
  comparison.batch_size = absl::GetFlag(FLAGS_batch_size);
  comparison.threads = absl::GetFlag(FLAGS_threads);
  comparison.steps = absl::GetFlag(FLAGS_steps);
  comparison.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  comparison.rounds = absl::GetFlag(FLAGS_rounds);
  comparison.seed = absl::GetFlag(FLAGS_seed);
  comparison.timeout = absl::GetFlag(FLAGS_timeout);
  return comparison;
}

struct Prepared {
  ReplicaComparison comparison;
  std::vector<ReplicaJob> jobs;
  std::string worker_binary;
  std::string path;  // of the records
};

absl::StatusOr<Prepared> Prepare(const char* argv0) {
  Prepared prepared;
  prepared.comparison = ComparisonFromFlags();
  GS_ASSIGN_OR_RETURN(prepared.jobs, ListReplicaJobs(prepared.comparison));
  prepared.worker_binary = UserPath(absl::GetFlag(FLAGS_worker_binary));
  if (prepared.worker_binary.empty()) {
    GS_ASSIGN_OR_RETURN(prepared.worker_binary, FindRunfile(argv0, "worker/worker"));
  }
  const std::string folder = UserPath(absl::GetFlag(FLAGS_out));
  GS_RETURN_IF_ERROR(CheckFolderWritable("out", folder));
  prepared.path = folder + "/data_parallel.json";
  return prepared;
}

absl::StatusOr<proto::Run> RunOnce(const Prepared& prepared, const ReplicaJob& job) {
  LocalJobOptions options;
  options.worker_binary = prepared.worker_binary;
  options.workers = job.workers();
  options.worker_flags = FlagsOf(prepared.comparison, job);
  options.collect_metrics = true;
  options.interrupt = &InterruptSignal();
  GS_ASSIGN_OR_RETURN(const LocalJobResult result, RunLocalJobOrFail(options));
  std::vector<proto::WorkerMetrics> workers;
  GS_RETURN_IF_ERROR(ParseMetrics(result.worker_metrics, "worker", &workers));
  return ReplicaRun(job, workers);
}

// One record of each job.
absl::StatusOr<std::vector<proto::Run>> Measure(const Prepared& prepared) {
  const size_t count = prepared.jobs.size();
  std::vector<std::vector<proto::Run>> rounds(count);
  for (int round = 0; round < prepared.comparison.rounds; ++round) {
    for (size_t i = 0; i < count; ++i) {
      const size_t at = (i + static_cast<size_t>(round)) % count;
      const std::string name = NameOf(prepared.jobs[at]);
      absl::StatusOr<proto::Run> run = RunOnce(prepared, prepared.jobs[at]);
      if (!run.ok()) {
        return absl::Status(run.status().code(), absl::StrCat(name, ": ", run.status().message()));
      }
      std::printf("round %d/%d  %s: %.1f samples/s\n", round + 1, prepared.comparison.rounds,
                  name.c_str(), run->samples_per_s());
      std::fflush(stdout);
      rounds[at].push_back(*std::move(run));
    }
  }
  std::vector<proto::Run> merged;
  for (const std::vector<proto::Run>& of_job : rounds) {
    GS_ASSIGN_OR_RETURN(proto::Run run, MergeRounds(of_job));
    merged.push_back(std::move(run));
  }
  return merged;
}

void PrintError(absl::string_view message) { gradsync::PrintError("data_parallel", message); }

int Compare(int argc, char** argv) {
  ParseFlagsOnly("data_parallel", argc, argv, kUsage);
  const absl::StatusOr<Prepared> prepared = Prepare(argv[0]);
  if (!prepared.ok()) {
    PrintError(prepared.status().message());
    return kBadInput;
  }
  CatchInterrupts();
  proto::RunRecords records;
  *records.mutable_machine() = DescribeMachine(CheckoutFolder());
  records.set_command(CommandLine("data_parallel", argc, argv));
  std::printf("%s\n%s\n", FormatMachine(records.machine()).c_str(),
              BuildModeWarning(records.machine()).c_str());
  const absl::StatusOr<std::vector<proto::Run>> runs = Measure(*prepared);
  if (!runs.ok()) {
    PrintError(runs.status().message());
    if (InterruptSignal() != 0) return 128 + InterruptSignal();
    return runs.status().code() == absl::StatusCode::kInvalidArgument ? kBadInput : 1;
  }
  for (const proto::Run& run : *runs) *records.add_runs() = run;
  const ReplicaVerdict verdict = JudgeReplicas(prepared->jobs, *runs);
  std::printf("\n%s\n%s", ReplicaTable(prepared->jobs, *runs).c_str(), verdict.text.c_str());
  const absl::Status written = WriteJson(prepared->path, records);
  if (!written.ok()) {
    PrintError(written.message());
    return 1;
  }
  std::printf("wrote %s/data_parallel.json\n", absl::GetFlag(FLAGS_out).c_str());
  return verdict.bits_agree ? 0 : 1;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  return gradsync::ExitCode("data_parallel", gradsync::Compare(argc, argv));
}
