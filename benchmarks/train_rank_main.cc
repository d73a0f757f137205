// One rank of a training contestant of //benchmarks:peers, which starts it; not for people.
//
// Rank 0 of several first prints "store HOST:PORT", for the others' --master. Each then prints
// "ready gradsync TOPOLOGY SERVERS LINK|DEVICE|NCCL'S VERSION|WHAT NCCL WAS ASKED FOR|SETTINGS",
// SERVERS being how many of the ranks are servers, too, and from there on answers lines with a
// number of steps with the turn's first and last microsecond on the host's monotonic clock. Ends at
// end of file.

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/ranks/join_main.h"
#include "benchmarks/ranks/rank_main.h"
#include "benchmarks/ranks/start_line.h"
#include "core/base/process_resources.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_resources.h"
#include "core/plan/job_spec.h"
#include "core/program/flags.h"
#include "gradsync/join/join.h"
#include "gradsync/join/nccl_settings.h"
#include "gradsync/join/open_device.h"
#include "worker/train/compute_options.h"
#include "worker/train/trainer.h"

namespace gradsync {
namespace {

constexpr int64_t kEndless = int64_t{1} << 40;  // steps

absl::StatusOr<TrainerOptions> TrainerFromSpec(const proto::RankSpec& spec, bool synchronised) {
  const proto::RankSpec::Training& told = spec.training();
  TrainerOptions options;
  GS_ASSIGN_OR_RETURN(options.compute.precision, ParsePrecision(told.precision()));
  options.compute.channels_last = told.channels_last();
  options.cuda_graph = !told.eager();
  options.allow_tf32 = told.tf32();
  options.data = told.data();
  options.cudnn_benchmark = told.cudnn_benchmark();
  options.loader_threads = told.loader_threads();
  options.ranks_on_host = absl::GetFlag(FLAGS_world_size);
  options.model.name = told.model();
  options.batch_size = told.batch_size();
  options.threads = told.threads();
  options.steps = kEndless;
  options.synchronised = synchronised;
  options.recipe.base = 0.05;
  if (told.bucket_bytes() > 0) options.plan.bucket_bytes = told.bucket_bytes();
  options.timeout = absl::Seconds(spec.timeout_seconds());
  OptimizerGroup group;
  group.momentum = 0.9;
  group.weight_decay = 5e-4;
  options.optimizer.groups = {group};
  return options;
}

// The parent's turns.
class Turns {
 public:
  // `gpu` may be null.
  static absl::StatusOr<Turns> Create(std::shared_ptr<GpuApi> gpu) {
    Turns turns;
    turns.gpu_ = std::move(gpu);
    if (turns.gpu_ == nullptr) return turns;
    GS_ASSIGN_OR_RETURN(turns.idle_, ScopedEvent::Create(turns.gpu_));
    return turns;
  }

  // Waits for the next turn; false when there is none, which is no error: the parent has closed our
  // standard input.
  bool Begin() {
    std::string line;
    int steps = 0;
    if (!std::getline(std::cin, line) || !absl::SimpleAtoi(line, &steps) || steps < 1) return false;
    last_step_ += steps;
    begin_ = MonotonicMicroseconds();
    return true;
  }

  bool EndsWith(int64_t step) const { return step == last_step_; }

  // After each step, in order; false when there is no next one. A turn ends when the GPU has done
  // all of it, the last update too.
  absl::StatusOr<bool> StepDone(int64_t step) {
    if (!EndsWith(step)) return true;
    if (gpu_ != nullptr) {
      GS_RETURN_IF_ERROR(gpu_->Record(idle_.get(), gpu_->ComputeStream()));
      GS_RETURN_IF_ERROR(gpu_->Synchronize(idle_.get()));
    }
    std::printf("%.1f %.1f\n", begin_, MonotonicMicroseconds());
    std::fflush(stdout);
    return Begin();
  }

 private:
  std::shared_ptr<GpuApi> gpu_;
  ScopedEvent idle_;
  int64_t last_step_ = 0;
  double begin_ = 0;
};

// Ranks that do not exchange anything are alone, each a world of its own.
absl::StatusOr<JoinOptions> JoinOptionsFromFlags(const proto::RankSpec& spec) {
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinFromFlags("peers", spec));
  join.meet.on_store = [](const std::string& address) {
    std::printf("store %s\n", address.c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  };
  GS_RETURN_IF_ERROR(OpenDevices(&join));
  if (join.sync.job.topology == Topology::kLocal) join.meet = MeetOptions();
  return join;
}

void PrintReady(const Member& member, const Trainer& trainer, bool tries) {
  const NcclApi* const nccl = member.options().nccl.get();
  const BackendTrait& ran = TraitOf(member.sync().identity().backend);
  const SyncOptions& sync = member.options();
  std::printf("ready gradsync %s %zu %s|%s|%s|%s|loader_threads=%d%s\n",
              TopologyName(ran.topology).c_str(),
              sync.servers_in_workers ? sync.servers.size() : size_t{0}, LinkName(ran.link).c_str(),
              DescribeDevice(member.options().gpu.get()).c_str(),
              nccl == nullptr ? "" : NcclVersionName(nccl->version()).c_str(),
              nccl == nullptr ? "" : nccl->algorithm().c_str(), trainer.loader_threads(),
              tries ? " cudnn_benchmark" : "");
  std::fflush(stdout);
}

absl::Status RunRank() {
  GS_ASSIGN_OR_RETURN(const proto::RankSpec spec, SpecFromFlags(proto::RankSpec::kTraining));
  GS_ASSIGN_OR_RETURN(JoinOptions join, JoinOptionsFromFlags(spec));
  const std::shared_ptr<GpuApi> gpu = join.sync.gpu;
  GS_ASSIGN_OR_RETURN(TrainerOptions options,
                      TrainerFromSpec(spec, join.sync.job.topology != Topology::kLocal));
  options.gpu = gpu;
  GS_ASSIGN_OR_RETURN(Turns turns, Turns::Create(gpu));
  options.report_all_after = [&turns](int64_t step) { return turns.EndsWith(step); };
  std::unique_ptr<Member> member;  // outlives the trainer
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                      Trainer::Create(options, join.meet.rank, join.meet.world_size));
  GS_ASSIGN_OR_RETURN(member, Join(std::move(join)));
  GS_RETURN_IF_ERROR(trainer->Bind(&member->sync(), &member->side_channel()));
  PrintReady(*member, *trainer, gpu != nullptr && options.cudnn_benchmark);
  // Nothing follows the last turn: the ranks may end in any order.
  if (!turns.Begin()) std::_Exit(0);
  return trainer
      ->Run([&](const StepReport& report) {
        const absl::StatusOr<bool> next = turns.StepDone(report.step);
        if (next.ok() && *next) return;
        if (!next.ok()) std::fprintf(stderr, "peers: %s\n", next.status().ToString().c_str());
        std::_Exit(next.ok() ? 0 : 1);
      })
      .status();
}

}  // namespace
}  // namespace gradsync

int main(int argc, char** argv) {
  gradsync::KeepFreedMemory();  // as //worker does
  gradsync::ParseFlagsOrExit(argc, argv, {"train_rank: started by peers."});
  return gradsync::RankExitCode("peers", gradsync::RunRank());
}
