// One worker of a training job. `bazel run //worker -- --help` lists the flags; docs/running.md shows
// jobs.

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/byte_sizes.h"
#include "base/flags.h"
#include "base/keep_memory.h"
#include "base/program_main.h"
#include "base/status_macros.h"
#include "base/straggler.h"
#include "grpc/support/log.h"
#include "join/environment_main.h"
#include "join/meet.h"
#include "join/sync_flags.h"
#include "train/kineto_trace.h"
#include "train/precision.h"
#include "train/recipe.h"
#include "worker/flag_topics.h"
#include "worker/job.h"

ABSL_FLAG(
    int, num_servers, 0,
    "number of servers that register in the store (ps_server --master=), instead of --servers");
ABSL_FLAG(int, rank, -1, "this worker's number, from 0; -1: from torchrun, Slurm or MPI, else 0");
ABSL_FLAG(int, world_size, -1, "number of workers; -1: from torchrun, Slurm or MPI, else 1");
ABSL_FLAG(
    int, local_rank, -1,
    "this worker's number on its host, from 0, by which --device=cuda chooses a GPU; -1: from "
    "torchrun, Slurm or MPI");
ABSL_FLAG(std::string, master, "",
          "host:port of the store, which rank 0 holds (port 0: any free one, see --port_file), "
          "needed for more than one worker; empty: from torchrun, Slurm or MPI");
ABSL_FLAG(std::string, port_file, "", "file to which rank 0 writes the store's host:port");
ABSL_FLAG(std::string, run_id, "",
          "name of the run, the same for all processes of the job; empty: from the launcher");
ABSL_FLAG(std::string, interface, "",
          "network interface that this worker is reached at, such as eth0; empty: that of the "
          "route to --master");
ABSL_FLAG(std::string, model, "resnet18", "model to train: resnet18, resnet50 or mlp");
ABSL_FLAG(std::string, stem, "imagenet",
          "first convolution of a ResNet: imagenet (7x7) or cifar (3x3)");
ABSL_FLAG(std::string, data, "synthetic",
          "data to train on: synthetic, synthetic:PIXELS (images so high and wide; else 32), or "
          "cifar10:DIR (folder of the binary version)");
ABSL_FLAG(int64_t, batch_size, 32, "samples per worker and step");
ABSL_FLAG(int64_t, steps, 0, "optimizer steps; 0: as many as --epochs has");
ABSL_FLAG(int64_t, epochs, 1, "passes over the data, when --steps is 0");
ABSL_FLAG(int64_t, warmup_steps, 0, "steps at the start that are trained but not measured");
ABSL_FLAG(std::string, optimizer, "sgd", "optimizer: sgd, adam or adamw");
ABSL_FLAG(double, lr, 0.01, "learning rate");
ABSL_FLAG(std::string, schedule, "constant",
          "how the learning rate changes: constant; step (--lr_milestones, --lr_gamma); or cosine, "
          "from --lr at the end of the warm-up to --lr_final at the end of the job");
ABSL_FLAG(std::vector<std::string>, lr_milestones, {},
          "with --schedule=step: when the learning rate drops, after steps (100,200) or epochs "
          "(30e,60e)");
ABSL_FLAG(double, lr_gamma, gradsync::RecipeOptions().gamma,
          "with --schedule=step: the factor by which each drop multiplies the learning rate");
ABSL_FLAG(double, lr_final, gradsync::RecipeOptions().final,
          "with --schedule=cosine: the learning rate at the end of the job");
ABSL_FLAG(int64_t, lr_warmup_steps, 0, "steps over which the learning rate rises to --lr");
ABSL_FLAG(double, momentum, 0.9, "momentum of sgd");
ABSL_FLAG(bool, nesterov, false, "use Nesterov's momentum with sgd");
ABSL_FLAG(double, weight_decay, 5e-4, "L2 penalty (sgd, adam) or decoupled decay (adamw)");
ABSL_FLAG(double, max_norm, 0, "clip gradients to this global norm; 0: do not clip");
ABSL_FLAG(bool, evaluate, false, "measure accuracy on the test split after the last step");
ABSL_FLAG(int64_t, evaluate_every, 0,
          "rank 0 keeps a copy of the model every so many steps, and measures the accuracy of each "
          "after the last step; 0: never");
ABSL_FLAG(uint64_t, seed, 0, "seed of initial weights, order of samples and augmentation");
ABSL_FLAG(std::string, straggler, "",
          "who computes slower, the same on all workers: RANK:FACTOR, or "
          "random:SEED:PROBABILITY:FACTOR for each rank and step");
ABSL_FLAG(std::string, precision, "fp32",
          "type in which convolutions and matrix products compute: fp32, bf16, or fp16 (GPU and "
          "--update=worker only; scales the loss); parameters, gradients and the loss are fp32 in "
          "any case");
ABSL_FLAG(bool, channels_last, false,
          "keep images and weights of convolutions in channels-last memory format (NHWC)");
ABSL_FLAG(bool, cuda_graph, gradsync::TrainerOptions().cuda_graph,
          "on a GPU: replay forward and backward as a CUDA graph, captured after some steps");
ABSL_FLAG(bool, fused_norm, true,
          "on a GPU with --channels_last: compute batch normalisation, addition and ReLU as one "
          "operation");
ABSL_FLAG(bool, tf32, false, "let a GPU compute fp32 convolutions and matrix products in TF32");
ABSL_FLAG(int, threads, 1, "compute threads of this worker");
ABSL_FLAG(bool, cudnn_benchmark, gradsync::TrainerOptions().cudnn_benchmark,
          "on a GPU: let cuDNN time its algorithms at the first step and take the fastest");
ABSL_FLAG(int, loader_threads, 0,
          "threads that prepare batches; 0: one, or on a GPU the worker's share of the cores but "
          "one, at most 8");
ABSL_FLAG(gradsync::ByteSize, bucket_bytes, gradsync::ByteSize{25 << 20},
          "upper bound of a gradient bucket; a larger tensor has a bucket of its own");
ABSL_FLAG(gradsync::ByteSize, first_bucket_bytes, gradsync::ByteSize{1 << 20},
          "upper bound of the first bucket");
ABSL_FLAG(gradsync::ByteSize, chunk_bytes, gradsync::ByteSize{},
          "upper bound of a chunk; 0: by bucket size and world size");
ABSL_FLAG(absl::Duration, timeout, absl::Seconds(60), "a peer that is silent for longer is lost");
ABSL_FLAG(std::string, device, "cpu",
          "what to train on: cpu; cuda, the GPU of this worker's local rank; cuda:N; or auto, cuda "
          "where this build (--config=cuda) and the machine have it (docs/gpu.md)");
ABSL_FLAG(std::string, metrics_json, "",
          "file for what this worker measured, WorkerMetrics of proto/run_record.proto");
ABSL_FLAG(std::string, trace, "",
          "file for a trace of some steps of this worker, as Chrome's trace JSON, which "
          "tools/trace_check reads; {rank} in it stands for the rank; needs --config=cuda");
ABSL_FLAG(std::string, trace_steps, "11:3",
          "steps that --trace records: FIRST:COUNT, the first step is 1");
ABSL_FLAG(int64_t, log_every, 10, "rank 0 prints a line every so many steps; 0: none");

namespace gradsync {
namespace {

absl::StatusOr<OptimizerSpec> OptimizerFromFlags() {
  OptimizerSpec spec;
  const std::string kind = absl::GetFlag(FLAGS_optimizer);
  if (kind == "sgd") {
    spec.kind = OptimizerKind::kSgd;
  } else if (kind == "adam") {
    spec.kind = OptimizerKind::kAdam;
  } else if (kind == "adamw") {
    spec.kind = OptimizerKind::kAdamW;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--optimizer: expected sgd, adam or adamw, found \"", kind, "\""));
  }
  OptimizerGroup group;
  group.weight_decay = absl::GetFlag(FLAGS_weight_decay);
  group.momentum = absl::GetFlag(FLAGS_momentum);
  group.nesterov = absl::GetFlag(FLAGS_nesterov);
  spec.groups.push_back(group);
  return spec;
}

absl::StatusOr<TrainerOptions> TrainerOptionsFromFlags() {
  TrainerOptions options;
  options.model.name = absl::GetFlag(FLAGS_model);
  options.model.stem = absl::GetFlag(FLAGS_stem);
  options.data = UserData(absl::GetFlag(FLAGS_data));
  options.batch_size = absl::GetFlag(FLAGS_batch_size);
  options.steps = absl::GetFlag(FLAGS_steps);
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.warmup_steps = absl::GetFlag(FLAGS_warmup_steps);
  GS_ASSIGN_OR_RETURN(options.optimizer, OptimizerFromFlags());
  GS_ASSIGN_OR_RETURN(options.recipe.schedule, ParseSchedule(absl::GetFlag(FLAGS_schedule)));
  options.recipe.base = absl::GetFlag(FLAGS_lr);
  options.recipe.gamma = absl::GetFlag(FLAGS_lr_gamma);
  options.recipe.final = absl::GetFlag(FLAGS_lr_final);
  GS_RETURN_IF_ERROR(ParseMilestones(absl::GetFlag(FLAGS_lr_milestones), &options.recipe));
  options.recipe.warmup_steps = absl::GetFlag(FLAGS_lr_warmup_steps);
  options.max_norm = absl::GetFlag(FLAGS_max_norm);
  options.seed = absl::GetFlag(FLAGS_seed);
  GS_ASSIGN_OR_RETURN(options.compute.precision, ParsePrecision(absl::GetFlag(FLAGS_precision)));
  options.compute.channels_last = absl::GetFlag(FLAGS_channels_last);
  options.cuda_graph = absl::GetFlag(FLAGS_cuda_graph);
  options.compute.fused_norm = absl::GetFlag(FLAGS_fused_norm);
  options.allow_tf32 = absl::GetFlag(FLAGS_tf32);
  options.threads = absl::GetFlag(FLAGS_threads);
  options.cudnn_benchmark = absl::GetFlag(FLAGS_cudnn_benchmark);
  options.loader_threads = absl::GetFlag(FLAGS_loader_threads);
  options.evaluate = absl::GetFlag(FLAGS_evaluate);
  options.evaluate_every = absl::GetFlag(FLAGS_evaluate_every);
  options.plan.bucket_bytes = absl::GetFlag(FLAGS_bucket_bytes).bytes;
  options.plan.first_bucket_bytes = absl::GetFlag(FLAGS_first_bucket_bytes).bytes;
  options.plan.chunk_bytes = absl::GetFlag(FLAGS_chunk_bytes).bytes;
  options.timeout = absl::GetFlag(FLAGS_timeout);
  GS_ASSIGN_OR_RETURN(options.straggler, Straggler::Parse(absl::GetFlag(FLAGS_straggler)));
  if (options.threads < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--threads: expected at least 1, found ", options.threads));
  }
  if (options.loader_threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--loader_threads: expected at least 0, found ", options.loader_threads));
  }
  return options;
}

// What each rank may have for itself: who and where it is, what it computes with, for how long it
// waits and what it leaves behind. (A world's size and a run's id are often the launcher's, and
// ranks that differ in them do not meet.) All other flags must be the same on all ranks; a new one
// is, unless it is named here.
constexpr absl::string_view kOfEachRank[] = {
    "rank",       "local_rank",  "world_size",      "run_id",  "master",
    "port_file",  "interface",   "device",          "threads", "loader_threads",
    "cuda_graph", "fused_norm",  "cudnn_benchmark", "timeout", "metrics_json",
    "trace",      "trace_steps", "log_every",
};

FlagTexts FlagsOfAllRanks() {
  FlagTexts flags = FlagValues();
  for (absl::string_view name : kOfEachRank) flags.erase(std::string(name));
  return flags;
}

// Flags win over the launcher's variables.
absl::StatusOr<JobOptions> JobOptionsFromFlags() {
  JobOptions job;
  GS_ASSIGN_OR_RETURN(job.join, JoinOptionsFromEnvironment());
  MeetOptions& meet = job.join.meet;
  if (absl::GetFlag(FLAGS_rank) >= 0) meet.rank = absl::GetFlag(FLAGS_rank);
  if (absl::GetFlag(FLAGS_world_size) >= 0) meet.world_size = absl::GetFlag(FLAGS_world_size);
  if (!absl::GetFlag(FLAGS_master).empty()) meet.master = absl::GetFlag(FLAGS_master);
  if (!absl::GetFlag(FLAGS_run_id).empty()) meet.run_id = absl::GetFlag(FLAGS_run_id);
  meet.interface = absl::GetFlag(FLAGS_interface);
  meet.timeout = absl::GetFlag(FLAGS_timeout);
  meet.on_store = WriteAddressTo(UserPath(absl::GetFlag(FLAGS_port_file)));
  job.join.same_on_all_ranks = FlagsOfAllRanks();
  job.join.num_servers = absl::GetFlag(FLAGS_num_servers);
  GS_ASSIGN_OR_RETURN(job.join.sync, SyncFromFlags());
  job.join.device.device = absl::GetFlag(FLAGS_device);
  const int local_rank = absl::GetFlag(FLAGS_local_rank);
  if (local_rank >= 0) job.join.device.local_rank = local_rank;
  job.metrics_json = UserPath(absl::GetFlag(FLAGS_metrics_json));
  job.log_every = absl::GetFlag(FLAGS_log_every);
  GS_ASSIGN_OR_RETURN(job.trainer, TrainerOptionsFromFlags());
  job.trainer.plan.codec = job.join.sync.job.codec;
  job.trainer.ranks_on_host = job.join.ranks_on_host;
  GS_ASSIGN_OR_RETURN(job.trainer.trace, ParseTrace(UserPath(absl::GetFlag(FLAGS_trace)),
                                                    absl::GetFlag(FLAGS_trace_steps), meet.rank));
  return job;
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();
  gradsync::FlagOptions options;
  options.usage =
      "worker [flags]: one worker of a data-parallel training job. tools/launch starts whole jobs.";
  options.topics = gradsync::WorkerTopics();
  const std::vector<std::string> positional = gradsync::ParseFlagsOrExit(argc, argv, options);
  gpr_set_log_function([](gpr_log_func_args*) {});  // what fails comes back as a status
  absl::StatusOr<gradsync::JobOptions> job = gradsync::JobOptionsFromFlags();
  if (!positional.empty()) {
    job = absl::InvalidArgumentError(
        absl::StrCat("expected flags only, found \"", positional[0], "\""));
  }
  gradsync::JobOutcome outcome;
  outcome.status = job.status();
  if (job.ok()) outcome = gradsync::RunJob(*std::move(job));
  if (!outcome.status.ok()) {
    std::fprintf(stderr, "worker: %s\n", outcome.status.ToString().c_str());
  }
  return outcome.exit_code();
}
