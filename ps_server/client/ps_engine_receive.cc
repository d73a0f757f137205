// What comes from the servers.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/chunk_codec.h"
#include "core/base/deadline.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/links/frames.h"
#include "core/optim/optimizer_state.h"
#include "core/plan/plan_proto.h"
#include "ps_server/client/ps_engine.h"

namespace gradsync {
namespace {

template <typename Taker>
absl::Status Consume(const Payload& payload, Taker to) {
  for (absl::Span<const char> part : payload.parts) {
    GS_RETURN_IF_ERROR(to.Consume(absl::string_view(part.data(), part.size())));
  }
  return to.Finish();
}

absl::Status Unexpected(const proto::FrameHeader& header, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "expected ", expected, ", found ", proto::FrameHeader::Kind_Name(header.kind()),
      " of bucket ", header.bucket(), " slot ", header.slot(), " in step ", header.step()));
}

}  // namespace

// One stream.
class PsEngine::Sink : public FrameSink {
 public:
  Sink(std::shared_ptr<PsEngine> engine, Server* server)
      : engine_(std::move(engine)), server_(*server) {}

  void OnFrame(const proto::FrameHeader& header, Payload payload) override {
    absl::Status status;
    if (header.kind() == proto::FrameHeader::HELLO) {
      status = OnWelcome(payload);
    } else {
      status = engine_->OnFrame(server_, header, payload);
    }
    if (status.ok()) return;
    // A server that has failed because of another process says whose fault it is.
    if (header.kind() == proto::FrameHeader::FAILED && BeginsWithCulprit(status.message())) {
      return engine_->on_error_(std::move(status));
    }
    engine_->on_error_(absl::Status(
        status.code(), absl::StrCat(server_.connection->Name(), ": ", status.message())));
  }

  void OnClosed(absl::Status status) override { engine_->OnClosed(server_, status); }

 private:
  absl::Status OnWelcome(const Payload& payload) {
    if (std::exchange(welcomed_, true)) {
      return absl::InvalidArgumentError("expected one answer to hello, found two");
    }
    if (payload.size() > 0) {
      proto::Host host;
      if (!ParsePayload(payload, kMaxGreetingBytes, &host)) {
        return absl::InvalidArgumentError("answer to hello: expected a Host, found something else");
      }
      MutexLock lock(&engine_->mutex_);
      server_.window = host.window();
    }
    --server_.unanswered;
    engine_->welcome_.Done();
    return absl::OkStatus();
  }

  const std::shared_ptr<PsEngine> engine_;
  Server& server_;
  bool welcomed_ = false;
};

absl::Status PsEngine::OpenStream(StreamLink& link, Server& server, Deadline deadline) {
  auto sink = std::make_shared<Sink>(shared_from_this(), &server);
  {
    MutexLock lock(&mutex_);
    ++open_;
  }
  absl::Status status =
      server.connection->Connect(link, std::move(sink), deadline, options_.failure_timeout,
                                 [&] { return options_.is_member(server.connection->number()); });
  if (PatienceWith(status) > absl::ZeroDuration()) {
    status = CutLink(options_.name, server.connection->Name(), status);
  }
  if (!status.ok()) {
    MutexLock lock(&mutex_);
    --open_;  // nobody else will
  }
  return status;
}

void PsEngine::OnClosed(Server& server, const absl::Status& status) {
  std::shared_ptr<Countdown> farewell;
  absl::Status lost;
  {
    MutexLock lock(&mutex_);
    farewell = farewell_;
    if (!status.ok() || farewell == nullptr) {
      lost = absl::UnavailableError(absl::StrCat(
          server.connection->Name(),
          " lost: ", status.ok() ? "it closed its stream without goodbye" : status.ToString()));
      if (PatienceWith(status) > absl::ZeroDuration()) {
        lost = CutLink(options_.name, server.connection->Name(), status);
      }
      lost_.Update(lost);
    }
  }
  if (lost.ok()) {
    farewell->Done();
  } else {
    // Whoever leaves hears of no errors any more, and would wait for this goodbye in vain.
    if (farewell != nullptr) farewell->Fail(lost);
    on_error_(std::move(lost));
  }
  MutexLock lock(&mutex_);
  --open_;
  changed_.SignalAll();
}

absl::Status PsEngine::OnFrame(Server& server, const proto::FrameHeader& header,
                               const Payload& payload) {
  switch (header.kind()) {
    case proto::FrameHeader::PULL:
    case proto::FrameHeader::PARAMETERS:
      return OnChunk(server, header, payload);
    case proto::FrameHeader::SHARD:
      return OnShard(server, header, payload);
    case proto::FrameHeader::DEFERRED:
      return OnDeferred(server, header);
    case proto::FrameHeader::CREDIT:
      return server.connection->AddCredit(header.count());
    case proto::FrameHeader::SQUARES:
      return OnSquares(server, header, payload);
    case proto::FrameHeader::STATE:
      return OnState(server, header, payload);
    case proto::FrameHeader::STATE_END:
      return OnStateEnd(server, header);
    case proto::FrameHeader::TRACE:
      return OnTrace(server, payload);
    case proto::FrameHeader::GOODBYE:
      return absl::OkStatus();  // the close that follows counts
    case proto::FrameHeader::FAILED:
      return FailureIn(header);
    default:
      return Unexpected(header, "a frame that servers send");
  }
}

absl::Status PsEngine::CheckOwned(const Server& server, ChunkId id) const {
  const bool exists = id.bucket >= 0 && id.bucket < static_cast<int>(plan_.buckets().size()) &&
                      id.slot >= 0 && id.slot < plan_.buckets()[id.bucket].layout.slots();
  if (exists && shards_.server(id) == server.connection->index()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a chunk that the server owns, found bucket ", id.bucket, " slot ", id.slot));
}

// Nobody can be further ahead than by the steps that he did himself.
absl::Status PsEngine::NoteStaleness(const proto::FrameHeader& header) {
  const int64_t found = header.count();
  if (found > steps_ || (found > 0 && !options_.consistency.Allows(found))) {
    return Unexpected(header, absl::StrCat("chunks that ", ConsistencyName(options_.consistency),
                                           " allows after ", steps_, " steps, not one that lacks ",
                                           found, " of the slowest worker's"));
  }
  step_staleness_ = std::max(step_staleness_, found);
  return absl::OkStatus();
}

absl::StatusOr<PsEngine::Arrival> PsEngine::Expect(const Server& server,
                                                   const proto::FrameHeader& header) {
  const ChunkId id = ChunkOf(header);
  GS_RETURN_IF_ERROR(CheckOwned(server, id));
  const bool is_pull = header.kind() == proto::FrameHeader::PULL;
  MutexLock lock(&mutex_);
  Bucket& bucket = buckets_[id.bucket];
  std::vector<bool>& awaited = is_pull ? bucket.awaited : bucket.parameters_awaited;
  if (!awaited[id.slot] || (is_pull && StepOf(header).step != bucket.step)) {
    return Unexpected(header, is_pull ? absl::StrCat("chunks of step ", bucket.step, ", each once")
                                      : "each chunk once in a broadcast");
  }
  awaited[id.slot] = false;
  if (is_pull && !options_.consistency.bulk()) GS_RETURN_IF_ERROR(NoteStaleness(header));
  Arrival arrival;
  arrival.is_result = is_pull ? !bucket.deferred[id.slot] : options_.rank == 0 && !settling_;
  arrival.countdown = is_pull ? bucket.countdown : transfer_;
  const bool to_grad = is_pull && options_.update_site == UpdateSite::kWorker;
  // Servers that keep the parameters alone only say that they have used the gradient.
  const bool notice = is_pull && plan_.slots().parameters > 0;
  if (notice) return arrival;
  if (is_pull || options_.rank != 0 || settling_) {
    arrival.to = (to_grad ? bucket.memory.grad : bucket.memory.param) + Range(id).begin;
  }
  return arrival;
}

ChunkForm PsEngine::FormOf(const proto::FrameHeader& header) const {
  const bool mean =
      header.kind() == proto::FrameHeader::PULL && options_.update_site == UpdateSite::kWorker;
  return ReturnedForm(plan_.codec(), Range(ChunkOf(header)).size(), plan_.world_size(),
                      mean ? Returned::kMean : Returned::kParameters);
}

absl::Status PsEngine::OnChunk(Server& server, const proto::FrameHeader& header,
                               const Payload& payload) {
  GS_ASSIGN_OR_RETURN(const Arrival arrival, Expect(server, header));
  TraceRecorder* const recorder = options_.recorder.get();
  RecordReceive(recorder, plan_.world_size() + server.connection->index(), header, payload.size());
  if (arrival.to != nullptr) {
    const ChunkId id = ChunkOf(header);
    const RecordedSpan span(recorder, TraceSpan::kCopy, StepOf(header).step, id.bucket, id.slot);
    GS_RETURN_IF_ERROR(
        Consume(payload, ChunkDecoder(FormOf(header), ChunkDecoder::Mode::kCopy, arrival.to)));
    received_.Received(static_cast<int64_t>(payload.size()));
  }
  if (arrival.is_result) server.connection->AddResult();
  arrival.countdown->Done();
  return absl::OkStatus();
}

absl::Status PsEngine::OnShard(Server& server, const proto::FrameHeader& header,
                               const Payload& payload) {
  const ChunkId id = ChunkOf(header);
  GS_RETURN_IF_ERROR(CheckOwned(server, id));
  std::shared_ptr<Countdown> countdown;
  float* to;
  {
    MutexLock lock(&mutex_);
    Bucket& bucket = buckets_[id.bucket];
    if (!bucket.shards_awaited[id.slot]) {
      return Unexpected(header, "chunks of a gather, each once");
    }
    bucket.shards_awaited[id.slot] = false;
    countdown = bucket.gather;
    to = bucket.memory.param + Range(id).begin;
  }
  GS_RETURN_IF_ERROR(Consume(payload, FloatCopier(to, Range(id).size())));
  received_.Received(static_cast<int64_t>(payload.size()));
  countdown->Done();
  return absl::OkStatus();
}

absl::Status PsEngine::OnDeferred(Server& server, const proto::FrameHeader& header) {
  const ChunkId id = ChunkOf(header);
  GS_RETURN_IF_ERROR(CheckOwned(server, id));
  {
    MutexLock lock(&mutex_);
    Bucket& bucket = buckets_[id.bucket];
    const int64_t step = StepOf(header).step;
    if (options_.consistency.bulk() || step > bucket.step) {
      return Unexpected(header, absl::StrCat("chunks of step ", bucket.step, " under ssp"));
    }
    // The answer may have come on another connection meanwhile.
    if (step < bucket.step || !bucket.awaited[id.slot]) return absl::OkStatus();
    if (bucket.deferred[id.slot]) return Unexpected(header, "each chunk once");
    bucket.deferred[id.slot] = true;
  }
  server.connection->AddResult();
  return absl::OkStatus();
}

absl::Status PsEngine::OnSquares(Server& server, const proto::FrameHeader& header,
                                 const Payload& payload) {
  const int64_t step = StepOf(header).step;
  GS_ASSIGN_OR_RETURN(const absl::optional<double> norm,
                      norms_.Add(server.connection->index(), step, payload));
  if (!norm.has_value()) return absl::OkStatus();
  for (int other : norms_.servers()) {
    OutgoingFrame frame;
    frame.header.set_kind(proto::FrameHeader::NORM);
    frame.header.set_step(header.step());
    frame.header.set_norm(*norm);
    servers_[other]->connection->Send(std::move(frame));
  }
  return absl::OkStatus();
}

absl::Status PsEngine::OnState(Server& server, const proto::FrameHeader& header,
                               const Payload& payload) {
  const ChunkId id = ChunkOf(header);
  GS_RETURN_IF_ERROR(CheckOwned(server, id));
  const std::vector<std::string> names = SlotNames(plan_.optimizer());
  if (std::find(names.begin(), names.end(), header.name()) == names.end()) {
    return Unexpected(header,
                      absl::StrCat("a slot of ", OptimizerKindName(plan_.optimizer().kind)));
  }
  const ElementRange range = Range(id);
  std::vector<float> values(range.size());
  GS_RETURN_IF_ERROR(Consume(payload, FloatCopier(values.data(), values.size())));
  MutexLock lock(&mutex_);
  if (exported_ == nullptr || !server.end_awaited) return Unexpected(header, "no state");
  ScatterSlot(plan_, id.bucket, range, header.name(), values.data(), exported_);
  ++server.pieces;
  return absl::OkStatus();
}

absl::Status PsEngine::OnTrace(Server& server, const Payload& payload) {
  if (options_.recorder == nullptr) return absl::InvalidArgumentError("expected no TRACE");
  GS_ASSIGN_OR_RETURN(absl::optional<std::string> trace, server.clock.Answer(payload.Flat()));
  if (!trace.has_value()) {
    server.connection->Send(server.clock.Ask());
    return absl::OkStatus();
  }
  options_.recorder->AddProcess(*std::move(trace));
  std::shared_ptr<Countdown> transfer;
  {
    MutexLock lock(&mutex_);
    transfer = transfer_;
  }
  transfer->Done();
  return absl::OkStatus();
}

absl::Status PsEngine::OnStateEnd(Server& server, const proto::FrameHeader& header) {
  std::shared_ptr<Countdown> transfer;
  {
    MutexLock lock(&mutex_);
    if (!server.end_awaited) return Unexpected(header, "no state");
    server.end_awaited = false;
    if (exported_ != nullptr) {
      if (header.count() != server.pieces) {
        return absl::DataLossError(absl::StrCat("optimizer state: expected ", header.count(),
                                                " pieces, found ", server.pieces));
      }
      // A server that owns nothing knows of no step.
      exported_->step = std::max(exported_->step, StepOf(header).step);
    }
    transfer = transfer_;
  }
  transfer->Done();
  return absl::OkStatus();
}

}  // namespace gradsync
