// A worker that says exactly what a test tells it to, right or wrong.

#ifndef GRADSYNC_PS_SERVER_RAW_WORKER_H_
#define GRADSYNC_PS_SERVER_RAW_WORKER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "core/base/mutex.h"
#include "core/links/frame_stream.h"
#include "core/plan/plan.h"
#include "core/plan/shard_map.h"
#include "proto/parameter_server.pb.h"

namespace gradsync {

// One stream to a server. Waits have a deadline of 30 seconds and then return nothing.
class RawStream {
 public:
  // The first stream of `rank` to a single server, ready to be changed.
  static proto::Hello HelloFor(const Plan& plan, int rank);

  RawStream(StreamLink& link, const std::string& address);
  ~RawStream();

  void SayHello(const proto::Hello& hello);
  void Send(proto::FrameHeader header, std::string payload);
  void Push(ChunkId id, const StepOptions& step, size_t bytes);
  // Nothing more will be sent.
  void Finish();
  void Cancel();

  // The next frame of this kind; others are dropped.
  absl::optional<proto::FrameHeader> Await(proto::FrameHeader::Kind kind);

  // The payload of the next frame of this kind.
  absl::optional<std::string> AwaitPayload(proto::FrameHeader::Kind kind);

  // The status of the next FAILED frame; OK if none came.
  absl::Status AwaitFailure();

  // Whether the stream has ended, at once or in time.
  bool AwaitEnd();

 private:
  struct Heard {
    proto::FrameHeader header;
    std::string payload;
  };
  class Sink;

  absl::optional<Heard> AwaitFrame(proto::FrameHeader::Kind kind);

  std::shared_ptr<Sink> sink_;
  std::shared_ptr<FrameStream> stream_;
};

}  // namespace gradsync

#endif  // GRADSYNC_PS_SERVER_RAW_WORKER_H_
