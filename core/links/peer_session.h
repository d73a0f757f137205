// A rank's streams with some of its peers: how they are opened and accepted, greet, and end.
//
// Of each pair one opens `connections` streams and the other one accepts them, at an address that it
// has published in the group's store. A stream begins with HELLO both ways, and in good order it ends
// with GOODBYE both ways. Whatever else ends it is the loss of a peer.

#ifndef GRADSYNC_CORE_LINKS_PEER_SESSION_H_
#define GRADSYNC_CORE_LINKS_PEER_SESSION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/deadline.h"
#include "core/base/mutex.h"
#include "core/group/worker_group.h"
#include "core/links/frame_stream.h"
#include "proto/frame.pb.h"
#include "proto/peer.pb.h"

namespace gradsync {

struct PeerSessionOptions {
  // A peer is called by its index here; a member may be there twice, once for each direction.
  struct Peer {
    int member = 0;      // of the group
    bool opens = false;  // it opens the streams; otherwise this rank does
  };

  WorkerGroup group;
  std::shared_ptr<StreamLink> link;
  std::vector<Peer> peers;
  int connections = 1;
  std::string kind;       // under which addresses are published: "ring", say
  std::string agreement;  // what the fingerprint is of, on which both ends must agree: "plan", say

  // These are called on threads of the link, for one stream one at a time. The first two may be null.
  //
  // What the first HELLO to a peer that does not open the streams says besides.
  std::function<std::string(int peer)> offer;
  // The peer has greeted, and offers that. Returns what the answer says, if it is the peer that opens
  // the streams. An error ends the stream, and what the peer hears of it.
  std::function<absl::StatusOr<std::string>(int peer, const std::string& offer)> on_greeting;
  // A frame that came after that, perhaps before Connect() has returned. An error is reported.
  std::function<absl::Status(int peer, const proto::FrameHeader&, Payload)> on_frame;
  // A peer is lost or sent nonsense: the status names its rank and address.
  std::function<void(absl::Status)> on_error;
};

// Thread-safe. Must not be destroyed on a thread of the link.
class PeerSession {
 public:
  explicit PeerSession(PeerSessionOptions options);
  ~PeerSession();

  PeerSession(const PeerSession&) = delete;
  PeerSession& operator=(const PeerSession&) = delete;

  // Collective among peers: listens, publishes the address, opens streams, and waits until all have
  // greeted. Call it once. Errors: DEADLINE_EXCEEDED or UNAVAILABLE naming the rank that is missing
  // and its address; what a peer refused with, such as FAILED_PRECONDITION for another fingerprint;
  // what Cancel() was called with.
  absl::Status Connect(const std::string& fingerprint, Deadline deadline);

  // Queues a frame. Never blocks. Dropped where the peer is not connected.
  void Send(int peer, int connection, OutgoingFrame frame);

  // Ends in good order: says GOODBYE and waits until all streams are closed, which needs all peers to
  // do the same. Errors: DEADLINE_EXCEEDED naming one that does not; the failure, if there was one.
  absl::Status Finish(Deadline deadline);

  // Ends all streams at once. Never blocks; may be called on any thread, but not while holding a lock
  // that on_error takes.
  void Cancel(const absl::Status& reason);

  // The same, and waits until they are closed: nothing is called any more. Not on a thread of the
  // link. The destructor does so too.
  void Close();

  // In messages: "rank 2 at 10.0.0.2:4000".
  std::string Name(int peer) const;

 private:
  class Sink;

  struct Peer {
    std::string address = "an unknown address";
    std::vector<std::shared_ptr<FrameStream>> streams;  // by connection; null: none yet
    int greeted = 0;                                    // streams on which it has
  };

  int count() const { return static_cast<int>(options_.peers.size()); }
  std::string Rank(int peer) const { return options_.group.Name(options_.peers[peer].member); }
  std::string OwnRank() const { return options_.group.Name(options_.group.rank); }
  std::string ListensAt() const { return listener_ == nullptr ? "" : listener_->address(); }
  absl::Status Listen(Deadline deadline);
  std::shared_ptr<FrameSink> Welcome(std::shared_ptr<FrameStream> stream);
  absl::Status Open(int peer, Deadline deadline);
  absl::Status OpenStream(int peer, int connection, const std::string& address, Deadline deadline);
  absl::Status WaitForPeers(Deadline deadline);
  absl::StatusOr<int> SenderOf(const proto::PeerHello& hello) const;
  absl::Status OnHello(const proto::PeerHello& hello, const std::shared_ptr<FrameStream>& stream,
                       int* peer);
  absl::Status OnAnswer(int peer, int connection, const proto::PeerHello& hello);
  void OnFrame(int peer, const proto::FrameHeader& header, Payload payload);
  void Lost(int peer, const absl::Status& status);
  void Closed();
  std::vector<std::shared_ptr<FrameStream>> Streams() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PeerSessionOptions options_;
  std::string fingerprint_;  // since Connect()
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);   // wakes Connect()
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // ends are expected
  int open_ ABSL_GUARDED_BY(mutex_) = 0;          // streams whose sinks may still be called
  std::unique_ptr<StreamListener> listener_;      // null where no peer opens streams
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_PEER_SESSION_H_
