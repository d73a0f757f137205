// What Join() (join.h) makes. A header apart: programs that link LibTorch include it, and it needs neither
// gRPC's headers nor Protocol Buffers'.

#ifndef GRADSYNC_GRADSYNC_JOIN_MEMBER_H_
#define GRADSYNC_GRADSYNC_JOIN_MEMBER_H_

#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/activity.h"
#include "core/group/mesh.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/join/sync_factory.h"

namespace gradsync {

class Meeting;
class OwnServer;
struct JoinOptions;

// A rank of a group that has met. Owns what it hands out, which its user must let go before.
// Not thread-safe, except Fail(); what it hands out says so itself.
class Member {
 public:
  ~Member();
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
  absl::Status Explain(const absl::Status& status) const;

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
  Member(std::shared_ptr<Meeting> meeting, WorkerGroup group);
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

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_JOIN_MEMBER_H_
