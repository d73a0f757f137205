// From nothing to a rank that can train, in one call: Join() gives it the group, the backend and
// the side channel. //worker, the ranks of all benchmarks and programs of users start like this:
//
//   absl::StatusOr<gradsync::JoinOptions> options = gradsync::JoinOptionsFromEnvironment();
//   options->sync.job.topology = gradsync::Topology::kRing;
//   options->sync.adapters = gradsync::TorchAdapters();  // of a program that links LibTorch
//   absl::StatusOr<std::unique_ptr<gradsync::Member>> member = gradsync::Join(*options);
//   ... DdpEngine::Create(module, &(*member)->sync(), &(*member)->side_channel(),
//                                       ddp_options)

#ifndef GRADSYNC_GRADSYNC_JOIN_JOIN_H_
#define GRADSYNC_GRADSYNC_JOIN_JOIN_H_

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/group/mesh.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
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

  const WorkerGroup& group() const { return group_; }

  // What runs, links and weights resolved.
  const SyncOptions& options() const { return options_; }

  // Of all ranks. Links between parts of a model: OpenModelPlaces() (model_places.h).
  const Mesh& mesh() const { return mesh_; }

  // What this process counts (MeetOptions).
  const std::shared_ptr<Activity>& activity() const { return activity_; }

  // Not bound yet (GradientSync::Bind()). In a mesh with stages or slices it is of the ranks that
  // have the same one as this rank.
  GradientSync& sync() const { return *sync_; }

  // Of all ranks; with Topology::kLocal, where ranks do not wait for each other, of this one alone,
  // unless it is a stage or a slice.
  SideChannel& side_channel() const { return *side_channel_; }

  // As Meeting::Explain().
  absl::Status Explain(const absl::Status& status) const { return meeting_->Explain(status); }

  // Collective, in the same order on all ranks: another group of the same ranks, which has met already.
  // Backend, side channel and servers in workers are its own, of the same kinds as here, and their keys
  // begin with `name`; its fate is the job's. It leaves before this one. Blocks for at most
  // group().timeout for each of what it waits for.
  // Errors: INVALID_ARGUMENT for a name that is empty, has a slash or was taken before, for a mesh, and
  // for servers with processes of their own, which serve one group; FAILED_PRECONDITION where ranks
  // have other names, with the first difference; those of SideChannel and CreateGradientSync().
  absl::StatusOr<std::unique_ptr<Member>> NewGroup(const std::string& name);

  // Ends the job for all ranks because of `reason`, at any time. Returns what the group agreed on,
  // which names the first cause; `reason` may be a consequence of it. Waits for the store for at
  // most two seconds.
  absl::Status Fail(const absl::Status& reason);

  // After sync().Shutdown(), in good order: with a server of its own once all others have done with
  // it. Ranks of Topology::kLocal just go, and a group by NewGroup() leaves the meeting to the first.
  // Errors: those of Meeting::Leave() and OwnServer::Wait().
  absl::Status Leave();

 private:
  friend absl::StatusOr<std::unique_ptr<Member>> Join(JoinOptions options);
  Member(std::shared_ptr<Meeting> meeting, WorkerGroup group)
      : meeting_(std::move(meeting)), group_(std::move(group)) {}
  absl::Status Complete(const JoinOptions& options);
  absl::Status CheckNewGroup(const std::string& name) const;
  absl::Status CreateSync(const WorkerGroup& replicas);
  absl::Status BecomeServers(const WorkerGroup& replicas);
  absl::Status FindServers(int count);
  absl::StatusOr<std::string> AwaitServer(int number, absl::string_view name);
  bool IsAlone() const { return options_.job.topology == Topology::kLocal && !mesh_.cuts_model(); }

  const std::shared_ptr<Meeting> meeting_;  // of all groups by NewGroup()
  const WorkerGroup group_;
  std::set<std::string> new_groups_;  // their names
  SyncOptions options_;
  Mesh mesh_;
  std::shared_ptr<Activity> activity_;
  std::unique_ptr<OwnServer> own_server_;  // outlives the backend
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
