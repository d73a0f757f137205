// A worker's streams to one server, and the chunks that wait to be sent on them until they may.

#ifndef GRADSYNC_PS_SERVER_CLIENT_SERVER_CONNECTION_H_
#define GRADSYNC_PS_SERVER_CLIENT_SERVER_CONNECTION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/base/deadline.h"
#include "core/base/fifo.h"
#include "core/base/mutex.h"
#include "core/base/trace_recorder.h"
#include "core/group/wire_stats.h"
#include "core/links/frame_stream.h"
#include "core/plan/shard_map.h"

namespace gradsync {

// Thread-safe; nothing but Connect() blocks.
class ServerConnection {
 public:
  // No more than `lead` chunks, one of PushLeads(), are on their way without a result, but those of
  // steps whose results wait for the norm of all (StepOptions::max_norm).
  // The server is `index` of this worker's, `number` of the job's, and called `name` in messages.
  // `recorder` of what is sent to it, which is process number `process`; may be null.
  ServerConnection(int index, int number, std::string name, std::string address, int connections,
                   int lead, std::shared_ptr<TraceRecorder> recorder = nullptr, int process = 0)
      : index_(index),
        number_(number),
        name_(std::move(name)),
        address_(std::move(address)),
        connections_(connections),
        limit_(CreditFor(lead)),
        recorder_(std::move(recorder)),
        process_(process),
        credit_(limit_),
        lead_(lead) {}

  // Opens the next stream; call `connections` times, before all else.
  // Errors: those of ConnectToMember(), naming the server.
  absl::Status Connect(StreamLink& link, std::shared_ptr<FrameSink> sink, Deadline deadline,
                       absl::Duration failure_timeout = absl::InfiniteDuration(),
                       const std::function<bool()>& is_member = nullptr);

  // Queues a chunk, number `number` of the step's or broadcast's order, to be sent after those
  // queued before and as soon as it may be.
  void Queue(OutgoingFrame frame, size_t number);

  // The server returned credit. Errors: INVALID_ARGUMENT when it returned more than it had.
  absl::Status AddCredit(int64_t count);

  // The result of one chunk has come, or word that it will.
  void AddResult();

  // Sends what needs no credit and no lead.
  void Send(OutgoingFrame frame, int connection = 0);

  // Says goodbye on all streams.
  void Leave();

  // Says why this worker leaves, drops what is queued and finishes all streams. `at_once`: ahead of
  // chunks that a stream has not written yet, for servers that have answered HELLO; else after them.
  void LeaveWith(const absl::Status& error, bool at_once = false);

  // Ends all streams and drops what is queued.
  void Cancel(const absl::Status& reason);

  // "server 1 (127.0.0.1:4242)".
  const std::string& Name() const { return name_; }

  int index() const { return index_; }
  int number() const { return number_; }
  int connections() const { return connections_; }

  // Payload of chunks sent so far.
  WireStats sent() const { return sent_.stats(); }

 private:
  struct Queued {
    OutgoingFrame frame;
    int connection = 0;
  };

  bool MaySendNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Pump();

  const int index_;
  const int number_;
  const std::string name_;
  const std::string address_;
  const int connections_;
  const int64_t limit_;
  const std::shared_ptr<TraceRecorder> recorder_;
  const int process_;
  WireCounter sent_;
  Mutex mutex_;
  std::vector<std::shared_ptr<FrameStream>> streams_ ABSL_GUARDED_BY(mutex_);
  Fifo<Queued> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t credit_ ABSL_GUARDED_BY(mutex_);
  // Chunks that may be sent before the next result; below 0 in steps with a norm.
  int64_t lead_ ABSL_GUARDED_BY(mutex_);
  bool left_ ABSL_GUARDED_BY(mutex_) = false;  // nothing is queued any more
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool pumping_ ABSL_GUARDED_BY(mutex_) = false;  // a thread is in Pump()
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_CLIENT_SERVER_CONNECTION_H_
