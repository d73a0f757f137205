// From nothing to a rank that can train, in one call: Join() gives it the group, the backend and
// the side channel. //worker, the ranks of all benchmarks and programs of users start like this:
//
//   absl::StatusOr<gradsync::JoinOptions> options = gradsync::JoinOptionsFromEnvironment();
//   options->sync.job.topology = gradsync::Topology::kRing;
//   absl::StatusOr<std::unique_ptr<gradsync::Member>> member = gradsync::Join(*options);
//   ... DistributedDataParallel::Create(module, &(*member)->sync(), &(*member)->side_channel(),
//                                       ddp_options)

#ifndef GRADSYNC_GRADSYNC_JOIN_JOIN_H_
#define GRADSYNC_GRADSYNC_JOIN_JOIN_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/group/mesh.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/pipeline/slice_link.h"
#include "core/pipeline/stage_link.h"
#include "core/plan/job_spec.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/join/agree_on_flags.h"
#include "gradsync/join/meet.h"
#include "gradsync/join/open_device.h"
#include "gradsync/join/own_server.h"
#include "gradsync/join/sync_factory.h"

namespace gradsync {

// What a process is told before it knows anybody: by flags, by the environment
// (gradsync/join/environment_main.h), or by the program itself.
struct JoinOptions {
  MeetOptions meet;
  SyncOptions sync;  // its gpu and nccl are opened by OpenDevices(), unless they are there
  Mesh mesh;         // of the ranks, where it cuts the model; else looked at by nobody
  Link stage_link = Link::kAuto;  // between stages: kGrpc, kShm or kAuto (stage_link.h)
  Link slice_link = Link::kAuto;  // between slices: kGrpc, kShm or kAuto (create_slice_link.h)
  // Servers that register in the store, when sync.servers is empty. Without any, with Topology::kPs,
  // the first sync.job.owners workers have one each; in a mesh that cuts the model, the first so many
  // replicas of each part.
  int num_servers = 0;
  DeviceOptions device;
  int ranks_on_host = 0;      // with this one, servers of its launcher too; 0: nobody said
  std::string launcher;       // that said who this process is, for records: "Slurm"
  std::string nccl_settings;  // what NCCL was told by its environment, for records

  // What must be the same on all ranks besides `sync.job`, which is compared too.
  FlagTexts same_on_all_ranks;
};

// A rank of a group that has met. Owns what it hands out, which its user must let go before.
// Not thread-safe, except Fail(); what it hands out says so itself.
class Member {
 public:
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const WorkerGroup& group() const { return meeting_.group(); }

  // What runs, links and weights resolved.
  const SyncOptions& options() const { return options_; }

  // Not bound yet (GradientSync::Bind()). In a mesh with stages or slices it is of the ranks that
  // have the same one as this rank.
  GradientSync& sync() const { return *sync_; }

  // Of all ranks; with Topology::kLocal, where ranks do not wait for each other, of this one alone,
  // unless it is a stage or a slice.
  SideChannel& side_channel() const { return *side_channel_; }

  // In a mesh with stages, else null.
  const PipelinePlace* pipeline() const { return stage_link_ == nullptr ? nullptr : &place_; }

  // In a mesh with slices, else null.
  const SlicePlace* slice() const { return slice_link_ == nullptr ? nullptr : &slice_place_; }

  // Ends the job for all ranks because of `reason`, at any time. Returns what the group agreed on,
  // which names the first cause; `reason` may be a consequence of it. Waits for the store for at
  // most two seconds.
  absl::Status Fail(const absl::Status& reason);

  // After sync().Shutdown(), in good order: with a server of its own once all others have done with
  // it. Ranks of Topology::kLocal just go. Errors: those of Meeting::Leave() and OwnServer::Wait().
  absl::Status Leave();

 private:
  friend absl::StatusOr<std::unique_ptr<Member>> Join(JoinOptions options);
  explicit Member(Meeting meeting) : meeting_(std::move(meeting)) {}
  absl::Status Complete(const JoinOptions& options);
  absl::Status BecomeServers(const WorkerGroup& replicas);
  absl::Status FindServers(int count);
  absl::StatusOr<std::string> AwaitServer(int number, absl::string_view name);
  void TakePlace(const JoinOptions& options);
  absl::Status TakeSlice(const JoinOptions& options);
  bool IsAlone() const {
    return options_.job.topology == Topology::kLocal && stage_link_ == nullptr &&
           slice_link_ == nullptr;
  }

  Meeting meeting_;
  SyncOptions options_;
  std::unique_ptr<OwnServer> own_server_;  // outlives the backend
  std::unique_ptr<StageLink> stage_link_;
  std::unique_ptr<SideChannel> stages_;
  std::unique_ptr<SideChannel> replicas_;
  PipelinePlace place_;
  std::unique_ptr<SliceLink> slice_link_;
  SlicePlace slice_place_;
  std::unique_ptr<GradientSync> sync_;
  std::unique_ptr<SideChannel> side_channel_;
};

// Everything that can be known alone: who this is, where the others are, what goes together.
// Opens nothing. Errors: INVALID_ARGUMENT naming the flag, what was expected and what came.
absl::Status CheckJoin(const JoinOptions& options);

// Opens the GPU that options->device names, and NCCL where that is the link; for programs that need
// them before they meet the others. Join() does it where it has not been done.
// Errors: those of OpenDevice(), CheckLinkDevice() and OpenNccl().
absl::Status OpenDevices(JoinOptions* options);

// Collective. Checks, opens devices, meets the others, compares with them what must be the same,
// finds servers and hosts, and creates the backend. Blocks for each of these for at most
// options.meet.timeout. Where a rank fails after it has reached the store, all others fail too, at
// once.
// Errors: those of CheckJoin() and OpenDevices(), before anybody is met; of Meet(), AgreeOnFlags(),
// ResolveByHosts() and CreateGradientSync(); DEADLINE_EXCEEDED for a server that did not register.
absl::StatusOr<std::unique_ptr<Member>> Join(JoinOptions options);

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_JOIN_H_
