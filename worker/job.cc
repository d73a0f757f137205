#include "worker/job.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "allreduce/open_nccl.h"
#include "base/deadline.h"
#include "base/host_port.h"
#include "base/local_address.h"
#include "base/status_macros.h"
#include "base/write_file.h"
#include "gpu/open_gpu.h"
#include "links/grpc_store.h"
#include "links/in_memory_store.h"
#include "links/store_run.h"
#include "plan/codec.h"
#include "sync/group_error.h"
#include "sync/side_channel.h"
#include "train/precision.h"
#include "worker/agree_on_flags.h"
#include "worker/metrics.h"
#include "worker/open_device.h"

namespace gradsync {
namespace {

// A gradient that overflows fp16 is infinite on the way to the mean, and the step must be skipped
// by whoever runs the optimizer.
absl::Status ValidateFp16(const JobOptions& options) {
  if (options.trainer.compute.precision != Precision::kFp16) return absl::OkStatus();
  if (options.sync.job.update != UpdateSite::kWorker) {
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

absl::Status Validate(const JobOptions& options) {
  if (options.world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--world_size: expected at least 1, found ", options.world_size));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("--rank: expected 0 to ", options.world_size - 1,
                                                   " with --world_size=", options.world_size,
                                                   ", found ", options.rank));
  }
  if (options.master.empty() && (options.world_size > 1 || options.num_servers > 0)) {
    return absl::InvalidArgumentError(
        "--master: expected host:port of rank 0 for more than one worker, found nothing");
  }
  if (!options.master.empty() && !ParseHostPort(options.master).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--master: expected host:port, found \"", options.master, "\""));
  }
  for (const std::string& server : options.sync.servers) {
    if (!ParseHostPort(server).ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--servers: expected host:port,..., found \"", server, "\""));
    }
  }
  GS_RETURN_IF_ERROR(ValidateDevice(options.device));
  SyncOptions sync = options.sync;
  sync.job.servers = options.num_servers;
  GS_RETURN_IF_ERROR(ValidateSyncOptions(sync));
  GS_RETURN_IF_ERROR(ValidateFp16(options));
  return CheckClipping(sync.job, options.trainer.max_norm);
}

// The store as this worker sees it, and the server if this worker holds it.
struct Rendezvous {
  std::unique_ptr<GrpcStoreServer> server;  // rank 0
  std::shared_ptr<KeyValueStore> store;
};

absl::StatusOr<Rendezvous> MeetAtStore(const JobOptions& options, const WorkerGroup& group) {
  Rendezvous rendezvous;
  if (options.master.empty()) {
    rendezvous.store = NewInMemoryStore();
    return rendezvous;
  }
  std::string address = options.master;
  if (options.rank == 0) {
    // Not at the name itself, which this host may have as a name for its loopback address.
    GS_ASSIGN_OR_RETURN(const HostPort master, ParseHostPort(options.master));
    GS_ASSIGN_OR_RETURN(
        rendezvous.server,
        GrpcStoreServer::Start(absl::StrCat(group.address, ":", master.port), group.credentials));
    address = absl::StrCat(group.address, ":", rendezvous.server->port());
    if (!options.port_file.empty()) {
      GS_RETURN_IF_ERROR(WriteFileAtomically(options.port_file, address + "\n"));
    }
  }
  const Deadline deadline = Deadline::In(group.timeout);
  GS_ASSIGN_OR_RETURN(rendezvous.store, ConnectStore(address, group.credentials, deadline));
  if (options.rank == 0) {
    GS_RETURN_IF_ERROR(PublishRun(*rendezvous.store, {group.run_id, group.attempt}, deadline));
  }
  return rendezvous;
}

// Servers that registered themselves, in the order of their numbers.
absl::Status FindServers(const WorkerGroup& group, int count, std::vector<std::string>* servers) {
  for (int i = 0; i < count; ++i) {
    GS_ASSIGN_OR_RETURN(std::string address, group.store->Get(group.Key(absl::StrCat("server/", i)),
                                                              Deadline::In(group.timeout)));
    servers->push_back(std::move(address));
  }
  return absl::OkStatus();
}

// Rank 0 holds the store, so it leaves last; the others' farewells are not answered if it is gone
// already.
void LeaveStore(const WorkerGroup& group) {
  const Deadline deadline = Deadline::In(absl::Seconds(5));
  if (group.rank != 0) {
    group.store->Set(group.Key(absl::StrCat("left/", group.rank)), "", deadline).IgnoreError();
    return;
  }
  for (int rank = 1; rank < group.world_size; ++rank) {
    group.store->Get(group.Key(absl::StrCat("left/", rank)), deadline).status().IgnoreError();
  }
}

void PrintDevice(const GpuApi* gpu, int64_t every) {
  if (every == 0) return;
  std::printf("device %s\n", DescribeDevice(gpu).c_str());
  std::fflush(stdout);
}

void PrintStep(const StepReport& report, int64_t every) {
  if (every == 0 || (report.step % every != 0 && report.step != 1 && report.step != report.steps)) {
    return;
  }
  std::printf("step %ld/%ld loss %.4f %.1f ms/step (exposed %.1f)\n",
              static_cast<long>(report.step), static_cast<long>(report.steps), report.loss,
              absl::ToDoubleMilliseconds(report.times.total),
              absl::ToDoubleMilliseconds(report.times.exposed));
  std::fflush(stdout);
}

void PrintResult(const TrainingResult& result) {
  if (result.test_samples > 0) {
    std::printf("test loss %.4f accuracy %.2f %%\n", result.test_loss, 100 * result.test_accuracy);
  }
  std::printf("final loss %.4f params_sha256 %s\n", result.final_loss,
              result.params_sha256.c_str());
  std::fflush(stdout);
}

class Job {
 public:
  explicit Job(JobOptions options) : options_(std::move(options)) {}

  // Everything before training. Nobody waits for a rank that fails here after it has reached the
  // store.
  absl::Status Prepare() {
    const absl::Status prepared = TryPrepare();
    if (!prepared.ok() && group_.store != nullptr) {
      PublishFailure(group_, prepared).status().IgnoreError();
    }
    return prepared;
  }

  absl::Status Train() {
    absl::StatusOr<TrainingResult> result = trainer_->Run([this](const StepReport& report) {
      if (options_.rank == 0) PrintStep(report, options_.log_every);
    });
    if (!result.ok()) {
      sync_->Abort(result.status());
      // What the group agreed on names the first cause; ours may be a consequence of it.
      return CauseOf(result.status());
    }
    if (options_.rank == 0) PrintResult(*result);
    if (!options_.metrics_json.empty()) {
      GS_RETURN_IF_ERROR(WriteWorkerMetrics(options_, *sync_, *trainer_, *result,
                                            side_channel_->bytes_sent(), options_.metrics_json));
    }
    if (options_.trainer.synchronised) LeaveStore(group_);
    return absl::OkStatus();
  }

 private:
  absl::Status TryPrepare() {
    GS_RETURN_IF_ERROR(Validate(options_));
    GS_ASSIGN_OR_RETURN(const std::shared_ptr<GpuApi> gpu,
                        OpenDevice(options_.device, options_.world_size, OpenGpu));
    options_.trainer.gpu = options_.sync.gpu = gpu;
    if (gpu != nullptr && options_.sync.job.link == Link::kNccl) {
      GS_ASSIGN_OR_RETURN(options_.sync.nccl, OpenNccl(gpu->device(), options_.nccl_algorithm));
    }
    if (gpu != nullptr || options_.rank == 0) PrintDevice(gpu.get(), options_.log_every);
    options_.trainer.synchronised = options_.sync.job.topology != Topology::kLocal;
    GS_ASSIGN_OR_RETURN(trainer_,
                        Trainer::Create(options_.trainer, options_.rank, options_.world_size));
    group_.rank = options_.rank;
    group_.world_size = options_.world_size;
    group_.run_id = options_.run_id;
    group_.attempt = options_.attempt;
    group_.timeout = options_.timeout;
    group_.credentials = InsecureCredentials();
    GS_ASSIGN_OR_RETURN(group_.address, LocalAddress(options_.master, options_.interface));
    GS_ASSIGN_OR_RETURN(rendezvous_, MeetAtStore(options_, group_));
    group_.store = rendezvous_.store;
    GS_RETURN_IF_ERROR(AgreeOnFlags(group_, options_.same_on_all_ranks));
    GS_RETURN_IF_ERROR(FindServers(group_, options_.num_servers, &options_.sync.servers));
    GS_RETURN_IF_ERROR(ResolveByHosts(group_, &options_.sync));
    GS_ASSIGN_OR_RETURN(sync_, CreateGradientSync(options_.sync, group_));
    // Workers that train by themselves need not wait for the slowest, nor it for them.
    side_channel_ = std::make_unique<SideChannel>(
        options_.trainer.synchronised ? group_ : WorkerGroup(), "trainer");
    return trainer_->Bind(sync_.get(), side_channel_.get());
  }

  absl::Status CauseOf(const absl::Status& seen) const {
    const absl::Status agreed = sync_->status();
    return agreed.ok() ? seen : agreed;
  }

  JobOptions options_;
  WorkerGroup group_;
  Rendezvous rendezvous_;
  std::unique_ptr<GradientSync> sync_;
  std::unique_ptr<SideChannel> side_channel_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

JobOutcome RunJob(JobOptions options) {
  Job job(std::move(options));
  JobOutcome outcome;
  outcome.status = job.Prepare();
  if (!outcome.status.ok()) return outcome;
  outcome.started = true;
  outcome.status = job.Train();
  return outcome;
}

}  // namespace gradsync
