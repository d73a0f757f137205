// Messages between ranks anywhere, as frames over a stream with each other rank.

#ifndef GRADSYNC_CORE_COLLECTIVES_STREAM_TRANSPORT_H_
#define GRADSYNC_CORE_COLLECTIVES_STREAM_TRANSPORT_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "core/base/block_pool.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/collectives/transport.h"
#include "core/group/side_channel.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "core/links/link_driver.h"
#include "core/links/peer_session.h"
#include "proto/frame.pb.h"

namespace gradsync {

struct StreamTransportOptions {
  WorkerGroup group;  // of at least two ranks
  std::shared_ptr<StreamLink> link;
  std::string terms;  // what must be the same on all ranks, besides; compared when they connect
  // A rank is lost, or sent nonsense: the status names it. On a thread of the link.
  std::function<void(absl::Status)> on_error;
  size_t piece_bytes = 0;  // most bytes of a message, the same on all ranks; 0: 256 KiB
  size_t small_bytes = 0;  // as CallTransport has them; 0: the default
};

// As CallTransport. What comes is kept, in the memory in which the link received it, until the call that
// it is for takes it. What Send() gets is lent to the link, and not copied.
class StreamTransport final : public CallTransport {
 public:
  explicit StreamTransport(StreamTransportOptions options);
  ~StreamTransport() override { Close(); }

  absl::Status Connect(SideChannel& channel, Deadline deadline) override;
  bool shares_memory() const override { return false; }
  size_t piece_bytes() const override { return piece_; }
  size_t small_bytes() const override { return small_; }
  int lead() const override { return 4; }
  void Begin(Deadline deadline) override { patience_.emplace(deadline); }
  absl::StatusOr<char*> Reserve(CallLane lane, size_t bytes) override;
  void Post(CallLane lane, int to, const CollectiveCall& call, size_t bytes) override;
  absl::Status Send(CallLane lane, int to, const CollectiveCall& call,
                    absl::Span<const char> bytes) override;
  absl::StatusOr<const CallMessage*> Receive(CallLane lane, int from) override;
  void Release(CallLane lane, int from) override;
  absl::Status Flush() override;
  void Fail(const absl::Status& status) override;
  void Settle() override;
  absl::Status Finish(Deadline deadline) override { return session_->Finish(deadline); }
  void Close() override { session_->Close(); }

 private:
  // Frames whose payloads are the caller's. Outlives this object, since frames may.
  struct Loans {
    Mutex mutex;
    CondVar changed;
    int out ABSL_GUARDED_BY(mutex) = 0;
  };

  struct Arrived {
    CallMessage message;
    Payload payload;  // has the message's bytes
  };

  int n() const { return options_.group.world_size; }
  int self() const { return options_.group.rank; }
  int PeerOf(int rank) const { return rank < self() ? rank : rank - 1; }
  int RankOf(int peer) const { return peer < self() ? peer : peer + 1; }
  PeerSessionOptions SessionOptions();
  absl::Status OnFrame(int from, const proto::FrameHeader& header, Payload payload);
  void SendFrames(int to, const CollectiveCall& call, absl::Span<const char> bytes,
                  const std::function<gradsync::Release()>& release);

  const StreamTransportOptions options_;
  const std::shared_ptr<LinkDriver> driver_;  // or null
  const size_t piece_;
  const size_t small_;
  const std::shared_ptr<BlockPool> pool_ = std::make_shared<BlockPool>();
  const std::shared_ptr<Loans> loans_ = std::make_shared<Loans>();

  // Of the thread that calls.
  std::shared_ptr<char> reserved_;
  absl::optional<PatientDeadline> patience_;

  Mutex mutex_;
  CondVar changed_;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::deque<Arrived>> inboxes_[kLanes] ABSL_GUARDED_BY(mutex_);  // by sender

  std::unique_ptr<PeerSession> session_;  // last: its threads use all of the above
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_COLLECTIVES_STREAM_TRANSPORT_H_
