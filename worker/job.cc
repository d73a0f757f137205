#include "worker/job.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/credentials.h"
#include "core/base/errors.h"
#include "core/base/grpc_health.h"
#include "core/base/host_identity.h"
#include "core/base/process_main.h"
#include "core/base/status_macros.h"
#include "core/base/write_file.h"
#include "core/group/drain.h"
#include "core/group/group_error.h"
#include "core/group/mesh.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/plan/codec.h"
#include "core/plan/job_spec.h"
#include "gradsync/join/join.h"
#include "gradsync/join/open_device.h"
#include "worker/effective_flags.h"
#include "worker/job_flags.h"
#include "worker/metrics.h"
#include "worker/model_places.h"
#include "worker/operation.h"
#include "worker/parallel_flags.h"
#include "worker/pipeline_flags.h"
#include "worker/seeing.h"
#include "worker/summary_lines.h"
#include "worker/train/compute_options.h"
#include "worker/train/count_tensor_memory.h"
#include "worker/train/step_times.h"
#include "worker/train/trainer.h"
#include "worker/training_flags.h"

namespace gradsync {
namespace {

// A gradient that overflows fp16 is infinite on the way to the mean, and the step must be skipped
// by whoever runs the optimizer.
absl::Status ValidateFp16(const JobOptions& options) {
  if (options.trainer.compute.precision != Precision::kFp16) return absl::OkStatus();
  if (options.join.sync.job.update != UpdateSite::kWorker) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision: expected fp32 or bf16 with --update=owner"
                     " (owners cannot skip a step whose gradients overflow), found fp16"));
  }
  if (options.trainer.plan.codec.sparse()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--precision: expected fp32 or bf16 with --compression=",
                     CodecName(options.trainer.plan.codec),
                     " (it would keep infinite gradients for later steps), found fp16"));
  }
  return absl::OkStatus();
}

// Workers that train by themselves end with different models, of which a checkpoint has one.
absl::Status ValidateCheckpoint(const JobOptions& options) {
  if (options.join.sync.job.topology != Topology::kLocal || options.join.meet.world_size == 1) {
    return absl::OkStatus();
  }
  return RefuseCheckpoints(options.trainer.checkpoint,
                           "with --topology=local and more than one worker");
}

absl::Status Validate(const JobOptions& options) {
  GS_RETURN_IF_ERROR(CheckJoin(options.join));
  GS_RETURN_IF_ERROR(CheckPipeline(options));
  GS_RETURN_IF_ERROR(ValidateCheckpoint(options));
  GS_RETURN_IF_ERROR(ValidateFp16(options));
  GS_RETURN_IF_ERROR(
      CheckRecipe(options.join.sync.job, options.join.meet.world_size, options.trainer));
  return CheckClipping(options.join.sync.job, options.trainer.max_norm);
}

void PrintDevice(const GpuApi* gpu, int64_t every) {
  if (every == 0) return;
  std::printf("device %s\n", DescribeDevice(gpu).c_str());
  std::fflush(stdout);
}

// Gloo and NCCL listen by themselves, for whoever comes.
void PrintUnguarded(Link link, const WorkerGroup& group) {
  if (group.rank != 0 || (link != Link::kGloo && link != Link::kNccl)) return;
  Credentials none = InsecureCredentials();
  none.insecure = group.credentials.insecure;
  if (CheckListener(none, absl::StrCat(group.address, ":0")).ok()) return;
  PrintNotice("worker",
              absl::StrCat("--link=", LinkName(link),
                           " neither encrypts nor asks for the secret, and other hosts reach ",
                           group.address, "; --insecure says that the network is trusted"));
}

// Equal for two paths exactly when their records would be one file under one kernel
// (FileReplacedAt()), in whatever mount namespaces; empty where the system does not say.
std::string FileOnHost(const std::string& path) {
  const absl::StatusOr<HostIdentity> host = ReadHostIdentity();
  const std::filesystem::path file = path.empty() ? "" : FileReplacedAt(path);
  struct stat folder;
  if (file.empty() || !host.ok() || stat(file.parent_path().c_str(), &folder) != 0) return "";
  return absl::StrCat(host->boot_id, " ", folder.st_dev, ":", folder.st_ino, " ",
                      file.filename().string());
}

// Who forgets --topology under a launcher would see one model of several.
void PrintApart(const JobOptions& options) {
  const int workers = options.join.meet.world_size;
  if (workers == 1 || options.trainer.synchronised) return;
  for (const FlagRecord& flag : options.flags.flags) {
    if (flag.name != "topology" || flag.origin != "default") continue;
    PrintNotice("worker",
                absl::StrCat("without --topology=ring or ps each of ", workers,
                             " workers trains a model of its own, and rank 0's is shown"));
  }
}

void PrintLine(absl::string_view line) {
  std::printf("%.*s\n", static_cast<int>(line.size()), line.data());
  std::fflush(stdout);
}

// Nobody asked for them by name.
void PrintServersInWorkers(const SyncOptions& sync, int64_t every) {
  if (!sync.servers_in_workers || every == 0) return;
  PrintLine(absl::StrCat(
      "parameter servers within workers: ",
      sync.job.owners == 0 ? std::string("all") : absl::StrCat("the first ", sync.job.owners)));
}

void PrintEpoch(const StepReport& report, int64_t every) {
  if (every == 0 || !report.epoch_end.has_value()) return;
  const EpochPoint& epoch = *report.epoch_end;
  std::printf("epoch %ld of rank 0: loss %.4f accuracy %.3f %% in %ld steps\n",
              static_cast<long>(epoch.epoch), epoch.loss, 100 * epoch.accuracy,
              static_cast<long>(epoch.steps));
  std::fflush(stdout);
}

absl::Duration MedianStep(const std::vector<StepTimes>& times) {
  std::vector<absl::Duration> totals;
  for (const StepTimes& step : times) totals.push_back(step.total);
  const auto middle = totals.begin() + static_cast<int64_t>(totals.size() / 2);
  std::nth_element(totals.begin(), middle, totals.end());
  return totals.empty() ? absl::ZeroDuration() : *middle;
}

void PrintMemory(const TrainingResult& result, bool activation_checkpointing) {
  std::printf("tensors beside the buckets at most %.1f MB in a step, median step %.1f ms%s\n",
              1e-6 * static_cast<double>(result.peak_tensor_bytes),
              absl::ToDoubleMilliseconds(MedianStep(result.times)),
              activation_checkpointing ? ", with activation checkpointing" : "");
}

void PrintEvaluation(const EvaluationPoint& point) {
  const Evaluation& judged = point.tested.judged();
  std::printf("step %ld test loss %.4f accuracy %.2f %%", static_cast<long>(point.step),
              judged.loss, 100 * judged.accuracy);
  if (point.tested.average.has_value()) {
    std::printf(" (average of the weights; the weights %.2f %%)",
                100 * point.tested.weights.accuracy);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// `workers` that trained together.
void PrintResult(const TrainingResult& result, int workers, bool evaluate_only) {
  if (result.test_samples > 0 && result.averaged) {
    std::printf("test loss %.4f accuracy %.2f %% without averaging the weights\n",
                result.weights_test_loss, 100 * result.weights_test_accuracy);
  }
  if (result.test_samples > 0) {
    std::printf("test loss %.4f accuracy %.2f %%\n", result.test_loss, 100 * result.test_accuracy);
  }
  if (evaluate_only) {
    std::printf("evaluated on %ld samples, no step trained, params_sha256 %s\n",
                static_cast<long>(result.test_samples), result.params_sha256.c_str());
    std::fflush(stdout);
    return;
  }
  std::printf("waited for data %.1f %% of the time\n", 100 * DataWaitShare(result.times));
  if (workers > 1 && !result.epochs.empty()) {
    const EpochPoint& epoch = result.epochs.back();
    std::printf("epoch %ld of all ranks: loss %.4f accuracy %.3f %%\n",
                static_cast<long>(epoch.epoch), epoch.global_loss, 100 * epoch.global_accuracy);
  }
  if (result.steps == 0) {
    std::printf("no steps left, params_sha256 %s\n", result.params_sha256.c_str());
  } else {
    std::printf("final loss %.4f params_sha256 %s\n", result.final_loss,
                result.params_sha256.c_str());
  }
  std::fflush(stdout);
}

class Job {
 public:
  explicit Job(JobOptions options) : options_(std::move(options)) {}

  // Everything before training. Nobody waits for a rank that fails here after it has reached the
  // store.
  absl::Status Prepare() {
    GS_RETURN_IF_ERROR(Validate(options_));
    GS_ASSIGN_OR_RETURN(seeing_, Seeing::Create(options_.seeing, rank()));
    options_.join.meet.recorder = options_.trainer.recorder = seeing_->recorder();
    options_.trainer.trace = options_.seeing.kineto;
    options_.trainer.activity = options_.join.meet.activity;
    if (options_.live_metrics.wanted()) {
      GS_ASSIGN_OR_RETURN(live_metrics_, LiveMetrics::Start(options_.live_metrics, rank(),
                                                            options_.join.meet.run_id));
      PrintLine(absl::StrCat("metrics at http://", live_metrics_->address(), "/metrics"));
    }
    GS_RETURN_IF_ERROR(OpenDevices(&options_.join));
    GS_RETURN_IF_ERROR(CheckOffload(options_));
    options_.trainer.gpu = options_.join.sync.gpu;
    options_.trainer.memory = CountTensorMemory(options_.trainer.gpu.get());
    if (options_.trainer.gpu != nullptr || rank() == 0) {
      PrintDevice(options_.trainer.gpu.get(), options_.log_every);
    }
    if (rank() == 0) GS_RETURN_IF_ERROR(ShowFlags(options_.flags, options_.log_every > 0));
    options_.trainer.checkpoint.say = PrintLine;
    options_.trainer.synchronised =
        options_.join.sync.job.topology != Topology::kLocal || options_.join.mesh.cuts_model();
    options_.trainer.updates_here = options_.join.sync.job.update == UpdateSite::kWorker;
    options_.trainer.one_pace = options_.join.sync.job.consistency.bulk();
    options_.trainer.stop_before = [this](int64_t step) { return StopBefore(step); };
    options_.trainer.on_evaluation = [this](const EvaluationPoint& point) {
      PrintEvaluation(point);
      seeing_->OnEvaluation(point);
    };
    GS_ASSIGN_OR_RETURN(trainer_,
                        Trainer::Create(options_.trainer, rank(), options_.join.meet.world_size));
    if (rank() == 0) {
      for (const std::string& line : trainer_->data_remarks()) PrintLine(line);
      for (const std::string& line : trainer_->notices()) PrintNotice("worker", line);
    }
    // Paths may differ, as of folders on each rank's own disk, so what the data are is compared.
    // A split that a rank has no use for is there all the same, as nothing.
    for (const std::string split : {"train", "test"}) {
      const std::string flag = split == "train" ? "data" : absl::StrCat("data (", split, " split)");
      const auto used = trainer_->data().find(split);
      options_.join.same_on_all_ranks[flag] =
          used == trainer_->data().end() ? "" : used->second.ToString();
    }
    GS_ASSIGN_OR_RETURN(member_, Join(options_.join));
    const absl::Status bound = Bind();
    if (!bound.ok()) member_->Fail(bound).IgnoreError();
    return bound;
  }

  // Of ranks that were told the same file of one host for their records the first writes it.
  absl::Status ShareRecords() {
    if (!options_.trainer.synchronised) return absl::OkStatus();
    const std::string own = FileOnHost(options_.metrics_json);
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        workers_->AllGather(own, Deadline::In(options_.join.meet.timeout)));
    if (own.empty()) return absl::OkStatus();
    const auto first = std::find(all.begin(), all.end(), own) - all.begin();
    const auto ranks = std::count(all.begin(), all.end(), own);
    if (first != rank()) {
      options_.metrics_json.clear();
    } else if (ranks > 1) {
      PrintNotice("worker",
                  absl::StrCat("--metrics_json=", options_.metrics_json, " is one file for ", ranks,
                               " ranks, of which rank ", rank(),
                               " writes it; {rank} in its name gives each its own"));
    }
    return absl::OkStatus();
  }

  // The trainer to those whom this rank has joined.
  absl::Status Bind() {
    PrintUnguarded(options_.join.sync.job.link, member_->group());
    if (rank() == 0) PrintApart(options_);
    if (rank() == 0) PrintServersInWorkers(member_->options(), options_.log_every);
    workers_ = std::make_unique<SideChannel>(member_->group(), "workers");
    GS_RETURN_IF_ERROR(ShareRecords());
    GS_ASSIGN_OR_RETURN(places_, ModelPlaces::Open(*member_, options_.model_links));
    return trainer_->Bind(&member_->sync(), &member_->side_channel(), workers_.get(),
                          places_->pipeline(), places_->slice());
  }

  // Of the trainer, before each step.
  absl::StatusOr<bool> StopBefore(int64_t step) {
    if (drain_ == nullptr) {
      WorkerGroup group = member_->group();
      // Ranks that train by themselves end by themselves.
      if (!options_.trainer.synchronised) group.store = nullptr;
      drain_ = std::make_unique<Drain>(std::move(group), step, options_.join.meet.activity);
    }
    const int signal = options_.interrupt == nullptr ? 0 : options_.interrupt->load();
    if (signal != 0 && !asked_) {
      asked_ = true;
      GS_RETURN_IF_ERROR(drain_->Ask(signal));
    }
    GS_ASSIGN_OR_RETURN(const bool stop, drain_->StopBefore(step));
    if (stop && options_.join.meet.health != nullptr) options_.join.meet.health->SetServing(false);
    return stop;
  }

  void DescribeStop(const TrainingResult& result, JobOutcome* outcome) const {
    const DrainRequest request = drain_->request();
    outcome->signal = request.signal;
    outcome->ended_by =
        absl::StrCat("ended by ", request.ToString(), " after step ", result.last_step, "; ",
                     !result.saved ? "without --checkpoint nothing is kept of it"
                                   : absl::StrCat("the checkpoint of step ", result.last_step,
                                                  " has it, from which --resume=auto goes on"));
  }

  absl::Status Train(JobOutcome* outcome) {
    ProgressOptions progress;
    progress.every = rank() == 0 ? options_.log_every : 0;
    progress.samples_per_step =
        options_.trainer.batch_size * options_.trainer.accumulate * Replicas();
    progress.steps_per_epoch = trainer_->steps_per_epoch();
    seeing_->Begin(progress, trainer_->first_step());
    // An evaluation alone has nothing to keep: a signal ends it.
    if (options_.catch_interrupt && !options_.trainer.evaluate_only) options_.catch_interrupt();
    if (live_metrics_ != nullptr) live_metrics_->Begin(member_->sync());
    const absl::StatusOr<TrainingResult> result = trainer_->Run([this](const StepReport& report) {
      if (options_.newest_step != nullptr) *options_.newest_step = report.step;
      if (live_metrics_ != nullptr) live_metrics_->OnStep(report, member_->sync());
      seeing_->OnStep(report);
      if (rank() == 0) PrintEpoch(report, options_.log_every);
    });
    // What the group agreed on names the first cause; ours may be a consequence of it.
    if (!result.ok()) return member_->Fail(result.status());
    if (rank() != 0 && options_.join.mesh.cuts_model()) {
      std::printf("params_sha256 %s\n", result->params_sha256.c_str());
      std::fflush(stdout);
    }
    if (rank() == 0 && options_.trainer.evaluate_only) {
      PrintResult(*result, Replicas(), /*evaluate_only=*/true);
    } else if (rank() == 0) {
      PrintMemory(*result, options_.trainer.model.activation_checkpointing);
      const SyncOptions& sync = member_->options();
      const int own_servers = sync.servers_in_workers ? static_cast<int>(sync.servers.size()) : 0;
      const std::string memory =
          MemoryLine(trainer_->plan(), sync.job, own_servers, /*staged=*/sync.gpu != nullptr);
      if (!memory.empty()) PrintLine(memory);
      const std::string replicas = ReplicaLine(result->times, options_.trainer.data_parallel);
      if (!replicas.empty()) PrintLine(replicas);
      const std::string stages = StageLine(result->times, trainer_->split());
      if (!stages.empty()) PrintLine(stages);
      PrintResult(*result, options_.trainer.synchronised ? Replicas() : 1,
                  /*evaluate_only=*/false);
    }
    GS_RETURN_IF_ERROR(seeing_->Finish(*member_, trainer_->plan(), *result));
    if (!options_.metrics_json.empty()) {
      GS_RETURN_IF_ERROR(
          WriteWorkerMetrics(options_, member_->sync(), *trainer_, *result, places_->pipeline(),
                             member_->side_channel().bytes_sent(), options_.metrics_json));
    }
    if (result->stopped) DescribeStop(*result, outcome);
    return member_->Leave();
  }

 private:
  int rank() const { return options_.join.meet.rank; }

  // Ranks that train on samples of their own.
  int Replicas() const {
    const Mesh& mesh = options_.join.mesh;
    return mesh.cuts_model() ? mesh.replicas() : options_.join.meet.world_size;
  }

  JobOptions options_;
  std::unique_ptr<Member> member_;
  std::unique_ptr<ModelPlaces> places_;
  std::unique_ptr<SideChannel> workers_;  // Trainer::Bind()
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Seeing> seeing_;
  std::unique_ptr<LiveMetrics> live_metrics_;  // null unless wanted
  std::unique_ptr<Drain> drain_;               // from the first step on
  bool asked_ = false;                         // by this rank's signal
};

}  // namespace

JobOutcome RunJob(JobOptions options) {
  Job job(std::move(options));
  JobOutcome outcome;
  outcome.status = job.Prepare();
  outcome.failed_by_others = FailedByOthers(outcome.status);
  if (!outcome.status.ok()) return outcome;
  outcome.started = true;
  outcome.status = job.Train(&outcome);
  return outcome;
}

}  // namespace gradsync
