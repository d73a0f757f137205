// What the two ends of a gRPC stream have in common: the queue of frames, which go several in one
// message where that is quick (MessageBudget), reading, and the order in which a call ends.
// Private to core/links/grpc_stream.
//
// gRPC asks much of those who use its callback API: one write at a time, no operation after
// Finish() or after the last hold is gone, one Finish() exactly. All operations but reads go
// through Pump(), which lets one thread at a time ask "what next?" under the mutex and do it
// without the mutex. Reads are started from reactions only.
#ifndef GRADSYNC_CORE_LINKS_GRPC_FRAME_STREAM_H_
#define GRADSYNC_CORE_LINKS_GRPC_FRAME_STREAM_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "core/base/fifo.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/links/frame_codec.h"
#include "core/links/frame_stream.h"
#include "core/links/silence_watch.h"
#include "grpcpp/support/byte_buffer.h"

namespace gradsync {

// The path of the one method that carries streams.
constexpr char kExchangeMethod[] = "/gradsync.proto.FrameLink/Exchange";

// Metadata of a call, with which it proves where it belongs (StreamProof). A run's id may be any
// bytes, which gRPC allows under names with this ending.
constexpr char kRunMetadata[] = "gradsync-run-bin";
constexpr char kKeyMetadata[] = "gradsync-key";

// Thread-safe. Derived classes hold a reference to themselves from the start of the call until
// Close() has run.
class GrpcFrameStream : public FrameStream, public SilenceWatch::Watched {
 public:
  void Send(OutgoingFrame frame) final;
  void Finish() final;
  void Cancel(absl::Status reason) final;
  void OnSilence(absl::Status why) final;

 protected:
  using Action = std::function<void()>;

  // `peer` names the other side in messages.
  explicit GrpcFrameStream(std::string peer) : peer_(std::move(peer)) {}

  void SetSink(std::shared_ptr<FrameSink> sink);

  // Hands the frames in `read_buffer_` to the sink. False when no further message is wanted.
  bool Deliver();
  // Tells the sink that no message will come any more.
  void DeliverEnd();
  void WriteDone();
  // No frame is sent from now on; queued ones are released. For streams that are lost or complete.
  void End();
  // Likewise, decided here: `to_peer` is why, `to_sink` what OnClosed() says. The first call of
  // either counts.
  void EndWith(absl::Status to_peer, absl::Status to_sink);
  // The call is over: the last word to the sink.
  void Close(absl::Status status);
  // Does what is to be done next, unless another thread is at it; then that thread does.
  void Pump();

  // Starts the write of `write_buffer_`, which stays until WriteDone().
  virtual void StartWriting(const grpc::ByteBuffer* message) = 0;
  // The next step towards the end of the call, if one is due.
  virtual Action NextEndAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // The step after Finish(), when all frames are written.
  virtual Action NextFinishAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  const std::string peer_;
  grpc::ByteBuffer read_buffer_;  // of the one read under way

  mutable Mutex mutex_;
  CondVar changed_;
  bool finish_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  // Of an end that was decided here.
  absl::optional<absl::Status> to_peer_ ABSL_GUARDED_BY(mutex_);
  absl::Status to_sink_ ABSL_GUARDED_BY(mutex_);

 private:
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Those that wait and go in the next message.
  void TakeFrames() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const FrameDecoder decoder_;
  std::shared_ptr<FrameSink> sink_ ABSL_GUARDED_BY(mutex_);
  Fifo<OutgoingFrame> urgent_ ABSL_GUARDED_BY(mutex_);
  Fifo<OutgoingFrame> normal_ ABSL_GUARDED_BY(mutex_);
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_done_ ABSL_GUARDED_BY(mutex_) = false;
  // Of the write under way; only the pumping thread touches them.
  std::vector<OutgoingFrame> outgoing_;
  grpc::ByteBuffer write_buffer_;
  MonotonicTime write_begin_;
  MessageBudget budget_;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_GRPC_FRAME_STREAM_H_
