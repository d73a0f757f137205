#include "ps_server/raw_worker.h"

#include <deque>
#include <utility>

#include "absl/time/clock.h"
#include "core/links/frames.h"
#include "core/plan/plan_proto.h"

namespace gradsync {
namespace {

Deadline Soon() { return Deadline::In(absl::Seconds(30)); }

}  // namespace

class RawStream::Sink : public FrameSink {
 public:
  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    MutexLock lock(&mutex);
    heard.push_back({header, payload.Flat()});
    changed.SignalAll();
  }
  void OnClosed(absl::Status) override {
    MutexLock lock(&mutex);
    closed = true;
    changed.SignalAll();
  }

  Mutex mutex;
  CondVar changed;
  std::deque<Heard> heard ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

proto::Hello RawStream::HelloFor(const Plan& plan, int rank) {
  proto::Hello hello;
  hello.set_run_id("test");
  hello.set_rank(rank);
  hello.set_address("10.0.0." + std::to_string(rank));
  *hello.mutable_plan() = PlanToProto(plan);
  proto::Terms& terms = *hello.mutable_terms();
  terms.set_world_size(plan.world_size());
  terms.set_connections(1);
  terms.set_credit(2);
  terms.add_weights(1);
  terms.set_update_site(proto::WORKER);
  terms.set_fingerprint(plan.fingerprint());
  return hello;
}

RawStream::RawStream(StreamLink& link, const std::string& address)
    : sink_(std::make_shared<Sink>()) {
  auto stream = link.Connect(address, 0, sink_, Soon());
  if (stream.ok()) stream_ = *std::move(stream);
}

RawStream::~RawStream() { Cancel(); }

void RawStream::Finish() { stream_->Finish(); }

bool RawStream::AwaitEnd() {
  const Deadline deadline = Soon();
  MutexLock lock(&sink_->mutex);
  while (!sink_->closed && !sink_->changed.WaitWithDeadline(&sink_->mutex, deadline)) {
  }
  return sink_->closed;
}

void RawStream::Cancel() {
  if (stream_ != nullptr) stream_->Cancel(absl::CancelledError("the test says so"));
  stream_ = nullptr;
}

void RawStream::SayHello(const proto::Hello& hello) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::HELLO);
  Send(header, hello.SerializeAsString());
}

void RawStream::Send(proto::FrameHeader header, std::string payload) {
  auto kept = std::make_shared<const std::string>(std::move(payload));
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.payload = absl::MakeConstSpan(kept->data(), kept->size());
  frame.released = [kept] {};
  stream_->Send(std::move(frame));
}

void RawStream::Push(ChunkId id, const StepOptions& step, size_t bytes) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PUSH);
  SetChunk(id, &header);
  SetStep(step, &header);
  Send(header, std::string(bytes, '\0'));
}

absl::optional<RawStream::Heard> RawStream::AwaitFrame(proto::FrameHeader::Kind kind) {
  const Deadline deadline = Soon();
  MutexLock lock(&sink_->mutex);
  for (;;) {
    while (!sink_->heard.empty()) {
      Heard heard = std::move(sink_->heard.front());
      sink_->heard.pop_front();
      if (heard.header.kind() == kind) return heard;
    }
    if (sink_->closed || sink_->changed.WaitWithDeadline(&sink_->mutex, deadline)) {
      return absl::nullopt;
    }
  }
}

absl::optional<proto::FrameHeader> RawStream::Await(proto::FrameHeader::Kind kind) {
  const absl::optional<Heard> heard = AwaitFrame(kind);
  if (!heard.has_value()) return absl::nullopt;
  return heard->header;
}

absl::optional<std::string> RawStream::AwaitPayload(proto::FrameHeader::Kind kind) {
  const absl::optional<Heard> heard = AwaitFrame(kind);
  if (!heard.has_value()) return absl::nullopt;
  return heard->payload;
}

absl::Status RawStream::AwaitFailure() {
  const absl::optional<proto::FrameHeader> header = Await(proto::FrameHeader::FAILED);
  if (!header.has_value()) return absl::OkStatus();
  return FailureIn(*header);
}

}  // namespace gradsync
