// Tensors between a stage of a pipeline that is a rank and its neighbours.

#ifndef GRADSYNC_WORKER_PIPELINE_STAGE_LINK_H_
#define GRADSYNC_WORKER_PIPELINE_STAGE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "core/base/activity.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/group_error.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/links/peer_session.h"
#include "core/plan/job_spec.h"
#include "proto/pipeline.pb.h"
#include "worker/pipeline/stage_channel.h"
#include "worker/pipeline/tensor_frames.h"
#include "worker/pipeline/tensor_ring.h"

namespace gradsync {

// This rank's place in one pipeline: messages to and from the stage before and the stage behind,
// over a stream with each.
//
// Thread-safe, but for Connect() and Finish(), which are called once each. A failure is one of the
// whole job (core/group/group_error.h): whoever notices one first publishes it, and all ranks of
// all groups of the job report that one. After it everything returns it.
//
// Destroying it without Finish() ends the streams at once, which the neighbours notice.
class StageLink : public StageChannel {
 public:
  // `group`: the stages of one pipeline, by stage (SubGroup() along MeshDimension::kPipeline).
  // `timeout` of the group: how long a neighbour may be silent while it is waited for. A Receive() is
  // a wait in `activity`, which may be null.
  //
  // `tensors`: by what elements pass to each neighbour, whose messages always come over a stream of
  // `link`: kGrpc or kTcp, on the stream too; kShm, through memory that both map; kAuto, so where the
  // neighbour is on the same host and can.
  StageLink(WorkerGroup group, std::shared_ptr<StreamLink> link, Link tensors,
            std::shared_ptr<Activity> activity = nullptr);
  ~StageLink() override;

  StageLink(const StageLink&) = delete;
  StageLink& operator=(const StageLink&) = delete;

  int stage() const override { return group_.rank; }
  int stages() const override { return group_.world_size; }

  // Collective: listens for the stage before and connects to the one behind. `fingerprint`, of what
  // the stages must agree on, must be the same on both sides of each stream. Errors:
  // DEADLINE_EXCEEDED or UNAVAILABLE naming the rank that is missing; FAILED_PRECONDITION for
  // another fingerprint, or a neighbour with which kShm shares no memory; RESOURCE_EXHAUSTED, with
  // kShm, for too little of it; those of other ranks, as ABORTED.
  absl::Status Connect(const std::string& fingerprint, Deadline deadline);

  // After Connect().
  void Send(Neighbour to, const TensorKey& key, const at::Tensor& tensor) override;

  // Errors: DEADLINE_EXCEEDED naming the tensor and the rank that owes it;
  // UNAVAILABLE naming a neighbour that is lost; INVALID_ARGUMENT for nonsense from it; of another
  // rank, ABORTED naming it.
  absl::StatusOr<at::Tensor> Receive(Neighbour from, const TensorKey& key,
                                     Deadline deadline) override;
  bool IsHere(Neighbour from, const TensorKey& key) override { return inbox_.Has(from, key); }
  absl::StatusOr<Neighbour> AwaitEither(const TensorKey& from_before, const TensorKey& from_behind,
                                        Deadline deadline) override;

  // Ends in good order, when all messages of all stages have been received: waits until the
  // neighbours do the same. Errors: DEADLINE_EXCEEDED naming those that do not.
  absl::Status Finish(Deadline deadline);

  // Ends everything for the whole job, because of `reason`. Never waits.
  void Abort(const absl::Status& reason) { group_error_->Report(reason); }

  // The failure that all report, or OK.
  absl::Status status() const { return group_error_->status(); }

  // Whether there is a stage on that side.
  bool Has(Neighbour neighbour) const { return peer_[Index(neighbour)] >= 0; }

  // Whether this rank's tensors go to that neighbour through memory, where there is room. Of the
  // stage before it is known when the first tensor has come.
  bool SharesMemory(Neighbour neighbour) const;

  // Bytes of tensors, through memory or not.
  int64_t bytes_sent() const;
  int64_t bytes_received() const;

 private:
  // Memory shared with a neighbour.
  struct Memory {
    Mutex mutex;  // of the order in which tensors are put there, and sent
    std::unique_ptr<TensorRingWriter> to ABSL_GUARDED_BY(mutex);  // null where none is offered
    absl::optional<TensorRingReader> from;  // of the stream that was greeted, and so of one thread
  };

  static int Index(Neighbour neighbour) { return neighbour == Neighbour::kBefore ? 0 : 1; }

  std::string NameOf(Neighbour neighbour) const { return session_->Name(peer_[Index(neighbour)]); }
  absl::Status OfferMemory();
  std::string Offer(Neighbour to);
  absl::StatusOr<absl::optional<TensorRingReader>> Accept(Neighbour from,
                                                          const proto::StageMemory& offered) const;
  absl::StatusOr<std::string> OnGreeting(Neighbour from, const std::string& offer);
  absl::Status OnFrame(Neighbour from, const proto::FrameHeader& header, const Payload& payload);
  absl::Status Keep(Neighbour from, const proto::FrameHeader& header, const Payload& payload);
  absl::Status KeepFromMemory(Neighbour from, proto::FrameHeader header, const Payload& payload);
  absl::Status Agreed(const absl::Status& own);
  void Fail(const absl::Status& status);

  const WorkerGroup group_;
  const Link tensors_;
  const std::shared_ptr<Activity> activity_;  // may be null
  std::vector<Neighbour> neighbours_;         // by peer of the session
  int peer_[2] = {-1, -1};                    // the other way round; -1: there is no such stage
  std::string host_;                          // where memory is shared, HostIdentity::Key()
  TensorInbox inbox_;
  Memory memory_[2];

  mutable Mutex mutex_;
  bool shares_[2] ABSL_GUARDED_BY(mutex_) = {false, false};  // tensors go to it through memory
  int64_t bytes_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t bytes_received_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<PeerSession> session_;
  std::unique_ptr<GroupError> group_error_;  // last: it calls Fail()
};

// A rank's place among those that train one model in stages. Points at what outlives it.
struct PipelinePlace {
  StageLink* link = nullptr;        // not connected yet
  SideChannel* stages = nullptr;    // of the stages of one pipeline, by stage
  SideChannel* replicas = nullptr;  // of the ranks that have the same stage of other pipelines
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_STAGE_LINK_H_
