// One worker of a training job. `bazel run //worker -- --help` lists the flags; docs/use/running.md shows
// jobs.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "core/base/errors.h"
#include "core/base/grpc_health.h"
#include "core/base/process_main.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/program/flags.h"
#include "core/program/grpc_reflection.h"
#include "core/program/last_words.h"
#include "core/program/openmp_binding.h"
#include "core/program/program_main.h"
#include "core/program/security_flags.h"
#include "core/program/system_resolver.h"
#include "gradsync/join/environment_main.h"
#include "gradsync/join/meet.h"
#include "gradsync/join/torch_adapters.h"
#include "grpc/support/log.h"
#include "worker/config_flags.h"
#include "worker/job.h"
#include "worker/job_flags.h"
#include "worker/operation.h"
#include "worker/parallel_flags.h"
#include "worker/pipeline_flags.h"
#include "worker/seeing.h"
#include "worker/sync_flags.h"
#include "worker/train/job_inputs.h"
#include "worker/train/trainer_options.h"
#include "worker/training_flags.h"

ABSL_FLAG(
    int, num_servers, 0,
    "number of servers that register in the store (ps_server --master=), instead of --servers; "
    "with --topology=ps and neither, workers are the servers (--owners)");
ABSL_FLAG(
    int, server_tasks, 0,
    "how many tasks of one srun, mpirun or torchrun are parameter servers: the last ones; all "
    "before them are workers, whose rank is their task's number; --num_servers need not be "
    "given then; 0: the launcher starts workers only");
ABSL_FLAG(int, rank, -1, "this worker's number, from 0; -1: from torchrun, Slurm or MPI, else 0");
ABSL_FLAG(int, world_size, -1, "number of workers; -1: from torchrun, Slurm or MPI, else 1");
ABSL_FLAG(
    int, local_rank, -1,
    "this worker's number on its host, from 0, by which --device=cuda chooses a GPU; -1: from "
    "torchrun, Slurm or MPI");
ABSL_FLAG(
    std::string, master, "",
    "host:port of the store, which rank 0 holds (port 0: any free one, see --port_file), "
    "needed for more than one worker; on rank 0 0.0.0.0:PORT listens at all addresses; empty: "
    "from torchrun, Slurm or MPI");
ABSL_FLAG(std::string, port_file, "", "file to which rank 0 writes the store's host:port");
ABSL_FLAG(std::string, run_id, "",
          "name of the run, the same for all processes of the job; empty: from the launcher");
ABSL_FLAG(
    int, attempt, -1,
    "number of the run's attempt, counted by the launcher from 0; -1: from torchrun or Slurm, "
    "else 0");
ABSL_FLAG(std::string, interface, "",
          "network interface that this worker is reached at, such as eth0; empty: that of the "
          "route to --master");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60),
          "longest wait for other processes, at the start and in a step");
ABSL_FLAG(std::string, device, "cpu",
          "what to train on: cpu; cuda, the GPU of this worker's local rank; cuda:N; or auto, cuda "
          "where this build (--config=cuda) and the machine have it (docs/use/gpu.md)");
ABSL_FLAG(
    std::string, metrics_json, "",
    "file for what this worker measured, WorkerMetrics of proto/run_record.proto; {rank} in it "
    "stands for the rank");
ABSL_FLAG(
    int64_t, log_every, 10,
    "rank 0 prints a line every so many steps; 0: none, only what the data hold and the result");

namespace gradsync {
namespace {

// What each rank may have for itself: who and where it is, what it computes with, for how long it
// waits and what it leaves behind. (A world's size and a run's id are often the launcher's, and
// ranks that differ in them do not meet.) All other flags must be the same on all ranks; a new one
// is, unless it is named here.
constexpr absl::string_view kOfEachRank[] = {
    // clang-format off
    "rank",
    "local_rank",
    "world_size",
    "run_id",
    "attempt",
    "master",
    "data",  // where it lies: what it is the ranks compare when they have opened it
    "port_file",
    "interface",
    "device",
    "threads",
    "loader_threads",
    "cuda_graph",
    "fused_norm",
    "weight_copies",
    "cudnn_benchmark",
    "timeout",
    "metrics_json",
    "trace",
    "trace_steps",
    "tensorboard",
    "log_every",
    "metrics_port",
    "metrics_host",
    "metrics_port_file",
    "log_format",
    "reflection",
    "prefetch_bytes",
    "config",
    "print_config",
    "write_config",
    "tls_cert",
    "tls_key",
    "tls_ca",
    "secret_file",
    "insecure",
    // clang-format on
};

FlagTexts FlagsOfAllRanks() {
  FlagTexts flags = FlagValues();
  for (absl::string_view name : kOfEachRank) flags.erase(std::string(name));
  AddTraceFlags(&flags);
  return flags;
}

// The number of the newest step, for lines of the log.
std::atomic<int64_t> newest_step{-1};

// From here on lines of the log are as the flags say.
absl::Status WatchFromOutside(JobOptions* job) {
  const int rank = job->join.meet.rank;
  GS_ASSIGN_OR_RETURN(const OperationOptions operations,
                      OperationsFromFlags(rank, job->join.device.local_rank.value_or(-1)));
  SetLog({operations.log_format, rank, /*server=*/-1, &newest_step});
  job->newest_step = &newest_step;
  job->live_metrics = operations.metrics;
  job->join.meet.health = std::make_shared<GrpcHealth>();
  if (operations.reflection) GS_RETURN_IF_ERROR(LoadGrpcReflection());
  job->interrupt = &InterruptSignal();
  job->catch_interrupt = CatchFirstInterrupt;
  return absl::OkStatus();
}

// Of the flags above, what no other part looks at.
absl::Status CheckOwnFlags() {
  const int attempt = absl::GetFlag(FLAGS_attempt);
  if (attempt < -1) {
    return FlagError("attempt", "at least 0, or -1 for the launcher's", absl::StrCat(attempt));
  }
  const absl::Duration timeout = absl::GetFlag(FLAGS_timeout);
  if (timeout <= absl::ZeroDuration()) {
    return FlagError("timeout", "a time above 0", absl::FormatDuration(timeout));
  }
  const int64_t log_every = absl::GetFlag(FLAGS_log_every);
  if (log_every < 0) return FlagError("log_every", "at least 0", absl::StrCat(log_every));
  return absl::OkStatus();
}

// Flags win over the launcher's variables.
absl::StatusOr<JobOptions> JobOptionsFromFlags(std::vector<FlagRecord> flags) {
  GS_RETURN_IF_ERROR(CheckOneTask(flags));
  GS_RETURN_IF_ERROR(CheckOwnFlags());
  GS_RETURN_IF_ERROR(ResolveRecipeDefaults(&flags));
  JobOptions job;
  const int server_tasks = absl::GetFlag(FLAGS_server_tasks);
  PlaceByFlags place;
  if (absl::GetFlag(FLAGS_rank) >= 0) place.rank = absl::GetFlag(FLAGS_rank);
  if (absl::GetFlag(FLAGS_world_size) >= 0) place.world_size = absl::GetFlag(FLAGS_world_size);
  place.master = absl::GetFlag(FLAGS_master);
  GS_ASSIGN_OR_RETURN(job.join, JoinOptionsFromEnvironment(server_tasks, place));
  MeetOptions& meet = job.join.meet;
  if (!absl::GetFlag(FLAGS_run_id).empty()) meet.run_id = absl::GetFlag(FLAGS_run_id);
  if (absl::GetFlag(FLAGS_attempt) >= 0) meet.attempt = absl::GetFlag(FLAGS_attempt);
  GS_ASSIGN_OR_RETURN(meet.credentials, CredentialsFromFlags(meet.credentials.secret));
  meet.notice = [](const std::string& text) { PrintNotice("worker", text); };
  meet.interface = absl::GetFlag(FLAGS_interface);
  meet.timeout = absl::GetFlag(FLAGS_timeout);
  GS_ASSIGN_OR_RETURN(meet.failure_timeout, FailureTimeoutFromFlags());
  meet.on_store = WriteAddressTo(UserPath(absl::GetFlag(FLAGS_port_file)));
  job.join.same_on_all_ranks = FlagsOfAllRanks();
  const int num_servers = absl::GetFlag(FLAGS_num_servers);
  if (num_servers != 0 && server_tasks != 0 && num_servers != server_tasks) {
    return FlagError("num_servers", absl::StrCat(server_tasks, ", as --server_tasks says, or none"),
                     absl::StrCat(num_servers));
  }
  if (num_servers != 0) job.join.num_servers = num_servers;
  GS_ASSIGN_OR_RETURN(job.join.sync, SyncFromFlags());
  job.join.sync.adapters = TorchAdapters();
  job.join.device.device = absl::GetFlag(FLAGS_device);
  const int local_rank = absl::GetFlag(FLAGS_local_rank);
  if (local_rank >= 0) job.join.device.local_rank = local_rank;
  job.metrics_json = UserPath(absl::StrReplaceAll(absl::GetFlag(FLAGS_metrics_json),
                                                  {{"{rank}", absl::StrCat(meet.rank)}}));
  job.log_every = absl::GetFlag(FLAGS_log_every);
  GS_ASSIGN_OR_RETURN(job.trainer, TrainerOptionsFromFlags());
  GS_RETURN_IF_ERROR(DataOptionsFromFlags(&job.trainer));
  GS_ASSIGN_OR_RETURN(job.trainer.checkpoint,
                      CheckpointOptionsFromFlags(job.join.same_on_all_ranks));
  job.trainer.evaluate_only = job.trainer.checkpoint.weights_only;
  job.trainer.timeout = absl::GetFlag(FLAGS_timeout);
  job.trainer.on_stall = [](int64_t step, int bucket, absl::Duration waited) {
    PrintNotice("worker", absl::StrCat("waiting for bucket ", bucket, " of step ", step, " for ",
                                       absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))),
                                       " so far"));
  };
  job.trainer.on_data_stall = [](absl::string_view what, absl::Duration reading) {
    PrintNotice(
        "worker",
        absl::StrCat("a step waits for ", what, ", which has been being read for ",
                     absl::FormatDuration(absl::Trunc(reading, absl::Seconds(1))), " so far"));
  };
  job.trainer.interrupted = [] { return InterruptSignal().load() != 0; };
  job.trainer.dataset.say = [](absl::string_view line) { PrintNotice("worker", line); };
  job.trainer.stall_after = std::min(job.trainer.stall_after, meet.failure_timeout / 2);
  job.trainer.plan.codec = job.join.sync.job.codec;
  job.trainer.ranks_on_host = job.join.ranks_on_host;
  GS_RETURN_IF_ERROR(PipelineFromFlags(&job));
  GS_RETURN_IF_ERROR(SlicesFromFlags(&job));
  GS_RETURN_IF_ERROR(ShardingFromFlags(&job));
  GS_RETURN_IF_ERROR(OffloadFromFlags(&job));
  GS_RETURN_IF_ERROR(DataParallelFromFlags(&job));
  GS_RETURN_IF_ERROR(CheckFlagsTogether(flags, meet.rank));
  job.flags = EffectiveFlagsFrom(std::move(flags), job.join);
  GS_ASSIGN_OR_RETURN(job.seeing, SeeingFromFlags(meet.rank));
  // An evaluation alone has no steps to show, and files of the job before stay as they are:
  // TensorBoard would hide its steps, and its flags would be those of an evaluation.
  if (job.trainer.evaluate_only) {
    job.seeing = SeeingOptions();
    job.flags.write_to.clear();
  }
  GS_RETURN_IF_ERROR(WatchFromOutside(&job));
  return job;
}

void PrintDroppedBinding(const JobOptions& job) {
  const std::string dropped = DroppedOpenMpBinding();
  if (dropped.empty() || job.join.meet.rank != 0) return;
  PrintNotice("worker",
              absl::StrCat(dropped,
                           " is left out: it would bind the threads of all workers of a host, "
                           "loaders and links included, to the same cores"));
}

// Found before the first step, and before others meet this rank. What Job opens itself is not here.
absl::Status CheckOutputs(const JobOptions& job) {
  const std::string port_file = UserPath(absl::GetFlag(FLAGS_port_file));
  std::vector<NamedFile> outputs = {{"metrics_json", job.metrics_json},
                                    {"metrics_port_file", job.live_metrics.port_file},
                                    {"trace", job.seeing.kineto.path}};
  if (job.join.meet.rank == 0) {
    outputs.push_back({"port_file", port_file});
    outputs.push_back({"write_config", job.flags.write_to});
    outputs.push_back({"trace", job.seeing.trace.path});
  }
  GS_RETURN_IF_ERROR(CheckDistinct(outputs, {{"init_from", job.trainer.checkpoint.init_from}}));
  GS_RETURN_IF_ERROR(CheckWritable("metrics_json", job.metrics_json));
  GS_RETURN_IF_ERROR(CheckWritable("metrics_port_file", job.live_metrics.port_file));
  if (job.join.meet.rank != 0) return absl::OkStatus();
  GS_RETURN_IF_ERROR(CheckWritable("port_file", port_file));
  return CheckWritable("write_config", job.flags.write_to);
}

// Returns the exit code.
int PrintModel(const TrainerOptions& options) {
  const absl::StatusOr<std::string> table = DescribeJob(options);
  if (table.ok()) {
    std::fputs(table->c_str(), stdout);
    return 0;
  }
  PrintError("worker", table.status().ToString());
  return 2;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::SayWhyItEnds();
  gradsync::UseSystemResolver();
  gradsync::EndBySignals("worker", "the first step: nothing was trained");
  gradsync::KeepFreedMemory();
  gradsync::RaiseFileLimit();
  gradsync::ParsedFlags parsed =
      gradsync::ParseFlagsWithOriginsOrExit(argc, argv, gradsync::WorkerFlagOptions());
  const std::vector<std::string>& positional = parsed.positional;
  gpr_set_log_function([](gpr_log_func_args*) {});  // what fails comes back as a status
  absl::StatusOr<gradsync::JobOptions> job = gradsync::JobOptionsFromFlags(std::move(parsed.flags));
  if (!positional.empty()) {
    job = absl::InvalidArgumentError(
        absl::StrCat("expected flags only, found \"", positional[0], "\""));
  }
  if (job.ok() && gradsync::WantsDescription()) {
    return gradsync::ExitCode("worker", gradsync::PrintModel(job->trainer));
  }
  if (job.ok() && gradsync::WantsDataCheck()) {
    return gradsync::ExitCode("worker", gradsync::CheckData(job->trainer));
  }
  gradsync::OutliveReaders();  // what only shows something may be cut off
  if (job.ok()) gradsync::PrintDroppedBinding(*job);
  gradsync::JobOutcome outcome;
  outcome.status = job.ok() ? gradsync::CheckOutputs(*job) : job.status();
  if (outcome.status.ok()) outcome = gradsync::RunJob(*std::move(job));
  if (!outcome.status.ok()) {
    gradsync::PrintError("worker", outcome.status.ToString());
  } else if (!outcome.ended_by.empty()) {
    gradsync::PrintNotice("worker", outcome.ended_by);
  }
  return gradsync::ExitCode("worker", outcome.exit_code());
}
