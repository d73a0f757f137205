#ifndef GRADSYNC_ALLREDUCE_RING_PEERS_H_
#define GRADSYNC_ALLREDUCE_RING_PEERS_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"

namespace gradsync {

struct RingPeersOptions {
  WorkerGroup group;
  std::shared_ptr<StreamLink> link;
  int connections = 4;
  std::string fingerprint;  // of the plan; the previous rank's must be equal

  // A frame from the previous rank, after Connect(): what comes before, of whatever kind, is reported
  // as an error, for there is nobody yet to pass it on to. On a thread of the link; several at a time.
  // An error is reported.
  std::function<absl::Status(const proto::FrameHeader&, Payload)> on_frame;
  // A neighbour is lost or sent nonsense; the status names its rank and address. On a thread of the
  // link.
  std::function<void(absl::Status)> on_error;
};

// A rank's streams: `connections` from the previous rank, which it hears, and as many to the next,
// to which it sends. Each begins with HELLO both ways. Thread-safe.
//
// Destroying it cancels all streams and waits until they are closed; it must not be destroyed on a
// thread of the link.
class RingPeers {
 public:
  explicit RingPeers(RingPeersOptions options);
  ~RingPeers();

  RingPeers(const RingPeers&) = delete;
  RingPeers& operator=(const RingPeers&) = delete;

  // Collective: listens, publishes the address, connects to the next rank, and waits for the
  // previous one. Errors: DEADLINE_EXCEEDED or UNAVAILABLE naming the rank that is missing and its
  // address; what the next rank refused with; what Cancel() was called with.
  absl::Status Connect(Deadline deadline);

  // Queues a frame to the next rank. Never blocks. Only after Connect() succeeded.
  void Send(int connection, OutgoingFrame frame);

  // Ends in good order: says GOODBYE and waits until all streams are closed, which needs both
  // neighbours to do the same. Errors: DEADLINE_EXCEEDED naming a neighbour that does not.
  absl::Status Finish(Deadline deadline);

  // Ends all streams at once. Never blocks; may be called on any thread, but not while holding a
  // lock that on_error takes.
  void Cancel(const absl::Status& reason);

 private:
  class PreviousSink;
  class NextSink;

  absl::Status CheckHello(const proto::FrameHeader& header, const Payload& payload, int* connection,
                          std::string* address);
  absl::Status Greet(const proto::FrameHeader& header, const Payload& payload,
                     const std::shared_ptr<FrameStream>& stream);
  // Ends a stream that does not show the job's key, if the job has one.
  bool IsStranger(FrameStream& stream) const;
  absl::Status ConnectToNext(Deadline deadline);
  absl::Status WaitForNeighbours(Deadline deadline);
  void Greeted();
  void Closed(bool previous, absl::Status status);
  void Lost(bool previous, const absl::Status& status);
  int OfJob(int member) const { return options_.group.RankOfJob(member); }
  std::string Rank(int member) const;  // its name in messages
  std::string PreviousName();
  std::string NextName();

  const RingPeersOptions options_;
  const int previous_;
  const int next_;

  std::atomic<bool> connected_{false};  // Connect() has succeeded
  Mutex mutex_;
  CondVar changed_;
  std::string previous_address_ ABSL_GUARDED_BY(mutex_) = "an unknown address";
  std::string next_address_ ABSL_GUARDED_BY(mutex_) = "an unknown address";
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);   // wakes Connect()
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // ends are expected
  int open_ ABSL_GUARDED_BY(mutex_) = 0;          // streams whose sinks may still be called
  int greeted_ ABSL_GUARDED_BY(mutex_) = 0;       // HELLO replies of the next rank
  std::vector<std::shared_ptr<FrameStream>> from_previous_
      ABSL_GUARDED_BY(mutex_);  // by connection; null until HELLO
  std::vector<std::shared_ptr<FrameStream>> to_next_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<StreamListener> listener_;
};

}  // namespace gradsync

#endif  // GRADSYNC_ALLREDUCE_RING_PEERS_H_
