// The two ends of a stream over a TCP connection. Private to core/links/tcp_stream.

#ifndef GRADSYNC_CORE_LINKS_TCP_FRAME_STREAM_H_
#define GRADSYNC_CORE_LINKS_TCP_FRAME_STREAM_H_

#include <sys/uio.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "core/base/fifo.h"
#include "core/base/monotonic_time.h"
#include "core/base/mutex.h"
#include "core/base/secret_proof.h"
#include "core/links/frame_stream.h"
#include "core/links/silence_watch.h"
#include "core/links/stream_registry.h"
#include "core/links/tcp_reactor.h"
#include "core/links/tcp_records.h"
#include "core/links/tcp_transport.h"

namespace gradsync {

// How long connections wait for signs of life.
struct TcpPatience {
  // A peer that has said nothing for this long is asked for an answer; infinite: never.
  absl::Duration ask_after = absl::InfiniteDuration();
  // One that does not answer for this long is lost.
  absl::Duration answer_within = absl::InfiniteDuration();
  // A connection on which no stream was opened for this long is closed.
  absl::Duration open_within = absl::Seconds(10);
};

// What those that are accepted need of their listener.
struct TcpAcceptance {
  TcpAcceptance(StreamAcceptor acceptor, std::string secret, std::shared_ptr<TlsContext> tls,
                std::function<void(int)> others, uint64_t max_payload_bytes,
                std::shared_ptr<SilenceWatch> watch)
      : acceptor(std::move(acceptor)),
        checker(std::move(secret)),
        tls(std::move(tls)),
        others(std::move(others)),
        max_payload_bytes(max_payload_bytes),
        watch(std::move(watch)) {}

  StreamAcceptor acceptor;  // null once no stream can come any more
  ProofChecker checker;
  const std::shared_ptr<TlsContext> tls;  // null: peers must not encrypt; otherwise they must
  const std::function<void(int)> others;  // TcpLinkOptions::others
  const uint64_t max_payload_bytes;
  const std::shared_ptr<SilenceWatch> watch;  // null: of nobody
  StreamRegistry registry;
};

// A connection and its stream. Reading, the sink's calls and the end happen on the reactor's thread.
// Writing happens on whichever thread has something to write: it takes `writing_`, writes until
// nothing is left or the socket is full, and lets go. Threads that are not the reactor's write small
// frames only, and leave the rest to it.
class TcpFrameStream : public FrameStream,
                       public TcpReactor::Handler,
                       public SilenceWatch::Watched,
                       public std::enable_shared_from_this<TcpFrameStream> {
 public:
  // A stream that was opened on `descriptor`, which it owns, through `transport`.
  TcpFrameStream(int descriptor, std::unique_ptr<TcpTransport> transport, std::string peer,
                 std::shared_ptr<TcpReactor> reactor, std::shared_ptr<ReceiveMemory> memory,
                 const TcpPatience& patience, std::shared_ptr<FrameSink> sink);

  // A connection that was accepted, on `descriptor`, which it owns and on which the peer is still to
  // open the stream.
  TcpFrameStream(int descriptor, std::string peer, std::shared_ptr<TcpReactor> reactor,
                 std::shared_ptr<ReceiveMemory> memory, const TcpPatience& patience,
                 std::shared_ptr<TcpAcceptance> acceptance);

  ~TcpFrameStream() override;

  // To be called once, by who made it.
  void Start() { reactor_->Add(descriptor_, shared_from_this()); }

  void Send(OutgoingFrame frame) override;
  void Finish() override;
  void Cancel(absl::Status reason) override;
  StreamProof proof() const override { return proof_; }

  void OnSilence(absl::Status why) override;

  bool OnReady(bool readable, bool writable) override;
  void OnAttention() override;
  void OnTick(MonotonicTime now, absl::Duration late) override;

 private:
  // kUnknown: of a connection that may use TLS, or be another's.
  enum class Opening { kUnknown, kAwaitsOpening, kAwaitsProof, kOpen };

  // What is being written; of the thread that has `writing_`.
  struct Batch {
    std::string control;                // records that go first
    std::vector<OutgoingFrame> frames;  // payloads on loan
    std::string heads;                  // prefixes and headers of the frames
    std::vector<size_t> ends;           // of each frame's, in `heads`
    std::vector<iovec> pieces;
    size_t next_piece = 0;
    bool finishes = false;  // with it all is said

    bool empty() const { return next_piece == pieces.size(); }
    void Encode();
    void Advance(size_t bytes);
  };

  // On the reactor's thread.
  bool Read();
  bool Sort();
  void GiveAway();
  bool TakeRecord(TcpRecord::Type type, absl::string_view header, Payload payload);
  bool TakeFrame(absl::string_view header, Payload payload);
  void TakeOpening(absl::string_view header);
  void TakeProof(absl::string_view header);
  void Refuse(absl::Status why);
  void Accept();
  void ReadEnded(absl::Status why);
  void ConsiderEnd(MonotonicTime now);
  bool HasEnded(MonotonicTime now, absl::Status* status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // With `writing_`.
  void Write();
  bool FillBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TakeTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  bool HasSomethingToWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWith(absl::Status to_peer, absl::Status to_sink);
  void DropQueues();
  void AskForAttention() { reactor_->Attend(shared_from_this()); }

  int descriptor_;                           // -1: given away
  std::unique_ptr<TcpTransport> transport_;  // does not change once the stream is open
  const std::string peer_;
  const std::shared_ptr<TcpReactor> reactor_;
  const TcpPatience patience_;
  const std::shared_ptr<TcpAcceptance> acceptance_;  // null: this end opened the stream

  // Of the reactor's thread.
  RecordReader reader_;
  std::shared_ptr<FrameSink> sink_;
  proto::FrameHeader header_;
  StreamProof proof_;
  Opening opening_;
  bool encrypted_ = false;  // at the accepting end
  absl::Status read_error_;
  MonotonicTime heard_;
  absl::optional<MonotonicTime> asked_;  // and not answered yet
  MonotonicTime open_by_;
  Batch batch_;

  Mutex mutex_;
  Fifo<OutgoingFrame> urgent_ ABSL_GUARDED_BY(mutex_);
  Fifo<OutgoingFrame> normal_ ABSL_GUARDED_BY(mutex_);
  std::string control_ ABSL_GUARDED_BY(mutex_);  // records to be written before frames
  bool open_ ABSL_GUARDED_BY(mutex_);            // frames may be written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;     // the socket, until it is writable
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;  // it became writable while a thread wrote
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;   // nothing can be written any more
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;    // no frame is taken any more
  bool finish_requested_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_taken_ ABSL_GUARDED_BY(mutex_) = false;
  bool finish_written_ ABSL_GUARDED_BY(mutex_) = false;
  bool peer_finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Of an end that was decided here.
  absl::optional<absl::Status> to_peer_ ABSL_GUARDED_BY(mutex_);
  absl::Status to_sink_ ABSL_GUARDED_BY(mutex_);
  MonotonicTime linger_ ABSL_GUARDED_BY(mutex_);
  bool shut_ ABSL_GUARDED_BY(mutex_) = false;
  // Nothing comes any more, for this reason.
  absl::optional<absl::Status> read_ended_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace gradsync

#endif  // GRADSYNC_CORE_LINKS_TCP_FRAME_STREAM_H_
