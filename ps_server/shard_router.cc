#include "ps_server/shard_router.h"

#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/group/process_trace.h"
#include "core/links/frames.h"
#include "core/plan/kinds.h"
#include "core/plan/plan.h"
#include "core/plan/plan_proto.h"
#include "core/plan/shard_map.h"
#include "proto/step_trace.pb.h"
#include "ps_server/window_host.h"

namespace gradsync {
namespace {

constexpr size_t kMaxWindowAddressBytes = 512;

}  // namespace

absl::StatusOr<std::unique_ptr<ShardRouter>> ShardRouter::Create(const Roster& roster,
                                                                 ShardRouterOptions options) {
  auto router = absl::WrapUnique(new ShardRouter(roster, std::move(options)));
  GS_RETURN_IF_ERROR(router->MakeShard(roster));
  GS_RETURN_IF_ERROR(router->Begin());
  return router;
}

ShardRouter::ShardRouter(const Roster& roster, ShardRouterOptions options)
    : options_(std::move(options)),
      terms_(roster.terms()),
      keeps_parameters_(roster.plan().slots().parameters > 0),
      // A message for each chunk costs as much CPU time as 64 KiB of payload. What is owed is less
      // than a batch, so a worker always has at least half of its credit, and one chunk would do.
      credit_batch_(CreditBatch(terms_.credit())),
      shard_bytes_(roster.shards().bytes(terms_.server_index())),
      order_(PushOrder(roster.plan(), roster.shards(), terms_.server_index(), 0),
             roster.plan().world_size()),
      lanes_(terms_.world_size()),
      on_their_way_(terms_.world_size()),
      folded_(terms_.world_size()),
      answers_(terms_.world_size()) {
  for (std::vector<Lane>& lanes : lanes_) lanes.resize(terms_.connections());
}

absl::Status ShardRouter::MakeShard(const Roster& roster) {
  GS_ASSIGN_OR_RETURN(const Consistency consistency, ParseConsistency(terms_.consistency()));
  if (terms_.windows()) {
    WindowHostOptions options;
    options.shards = roster.shards();
    options.timeout = options_.timeout;
    options.on_failure = options_.on_lost;
    GS_ASSIGN_OR_RETURN(shard_, MakeWindowShard(roster, std::move(options)));
  } else if (!consistency.bulk()) {
    GS_ASSIGN_OR_RETURN(shard_,
                        AsyncShard::Create(roster.plan(), roster.shards(), terms_.server_index(),
                                           consistency, options_.sink, this));
  } else {
    GS_ASSIGN_OR_RETURN(shard_, ParameterShard::Create(roster.plan(), roster.shards(),
                                                       terms_.server_index(), terms_.update_site(),
                                                       /*holds_first=*/terms_.credit() > 1, this));
  }
  return absl::OkStatus();
}

absl::Status ShardRouter::Begin() {
  shard_->CountIn(options_.activity);
  if (terms_.trace_last_step() > 0) {
    recorder_ =
        std::make_shared<TraceRecorder>(terms_.trace_first_step(), terms_.trace_last_step());
    shard_->Record(recorder_);
  }
  if (shard_->window().empty()) return absl::OkStatus();
  GS_ASSIGN_OR_RETURN(proto::Host own, OwnHost());
  own.set_window(shard_->window());
  welcome_ = own.SerializeAsString();
  return absl::OkStatus();
}

void ShardRouter::Connect(const MemberStream& member) {
  Lane& lane = lanes_[member.rank][member.connection];
  lane.rank = member.rank;
  lane.connection = member.connection;
  lane.stream = member.stream;
  lane.sequence.emplace(&order_, member.rank, member.connection, terms_.connections());
}

void ShardRouter::Welcome(const MemberStream& member) const {
  OutgoingFrame frame = FrameOf(proto::FrameHeader::HELLO);
  if (member.connection == 0) SetPayload(welcome_, &frame);
  member.stream->Send(std::move(frame));
}

absl::Status ShardRouter::Route(int rank, int connection, const proto::FrameHeader& header,
                                Payload payload) {
  GS_RETURN_IF_ERROR(shard_->Expects(header.kind()));
  Lane& lane = lanes_[rank][connection];
  switch (header.kind()) {
    case proto::FrameHeader::WINDOWS:
      return OnWindows(lane, payload);
    case proto::FrameHeader::PUSH:
      return OnPush(lane, header, std::move(payload));
    case proto::FrameHeader::PARAMETERS:
      return OnParameters(lane, header, payload);
    case proto::FrameHeader::SHARD:
      return OnShard(lane, header);
    case proto::FrameHeader::SETTLE:
      return OnSettle(lane);
    case proto::FrameHeader::NORM:
      return shard_->Norm(rank, StepOf(header).step, header.norm());
    case proto::FrameHeader::STATE_REQUEST:
      return OnStateRequest(lane);
    case proto::FrameHeader::STATE:
    case proto::FrameHeader::STATE_END:
      return OnState(lane, header, payload);
    case proto::FrameHeader::TRACE:
      return OnTrace(lane, header);
    case proto::FrameHeader::GOODBYE:
      return shard_->Leave(rank);
    default:
      return absl::InvalidArgumentError(absl::StrCat("expected a frame that workers send, found ",
                                                     proto::FrameHeader::Kind_Name(header.kind()),
                                                     " (", header.kind(), ")"));
  }
}

absl::Status ShardRouter::OnWindows(const Lane& lane, const Payload& payload) {
  proto::WindowAddresses addresses;
  const size_t members = terms_.world_size() + terms_.weights_size();
  if (lane.rank != 0 || !ParsePayload(payload, members * kMaxWindowAddressBytes, &addresses)) {
    return UnexpectedWindows();
  }
  return shard_->Begin({addresses.addresses().begin(), addresses.addresses().end()});
}

absl::Status ShardRouter::TakeCredit(int rank) {
  const int on_their_way = ++on_their_way_[rank];
  if (on_their_way <= terms_.credit()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", terms_.credit(),
                                                 " chunks without credit, found ", on_their_way));
}

absl::Status ShardRouter::OnPush(Lane& lane, const proto::FrameHeader& header, Payload payload) {
  const StepOptions step = StepOf(header);
  GS_RETURN_IF_ERROR(CheckStep(step));
  RecordReceive(recorder_.get(), lane.rank, header, payload.size());
  GS_RETURN_IF_ERROR(TakeCredit(lane.rank));
  GS_RETURN_IF_ERROR(lane.sequence->Push(ChunkOf(header), step.step));
  rx_bytes_ += static_cast<int64_t>(payload.size());
  step_rx_bytes_ += static_cast<int64_t>(payload.size());
  ++rx_messages_;
  return shard_->Push(lane.rank, ChunkOf(header), step, std::move(payload));
}

absl::Status ShardRouter::OnParameters(Lane& lane, const proto::FrameHeader& header,
                                       const Payload& payload) {
  if (lane.rank != 0) {
    return absl::InvalidArgumentError("parameters: expected them from rank 0 only");
  }
  GS_RETURN_IF_ERROR(TakeCredit(0));
  GS_RETURN_IF_ERROR(lane.sequence->Parameters(ChunkOf(header)));
  rx_bytes_ += static_cast<int64_t>(payload.size());
  ++rx_messages_;
  const ChunkId id = ChunkOf(header);
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<LentBuffer> values, shard_->SetParameters(id, payload));
  OnFolded(0);
  OutgoingFrame reply = FrameOf(proto::FrameHeader::PARAMETERS);
  SetChunk(id, &reply.header);
  for (int rank = 1; rank < terms_.world_size(); ++rank) {
    SendValues(rank, lane.connection, reply.header, values);
  }
  lane.stream->Send(std::move(reply));
  return absl::OkStatus();
}

absl::Status ShardRouter::OnShard(const Lane& lane, const proto::FrameHeader& header) {
  GS_ASSIGN_OR_RETURN(const std::vector<Shard::KeptChunk> kept,
                      shard_->Parameters(static_cast<int>(header.bucket())));
  for (const Shard::KeptChunk& chunk : kept) {
    proto::FrameHeader answer;
    answer.set_kind(proto::FrameHeader::SHARD);
    SetChunk(chunk.id, &answer);
    SendAnswer(lane.rank, std::move(answer), chunk.values);
    step_tx_bytes_ += static_cast<int64_t>(chunk.values->bytes().size());
  }
  return absl::OkStatus();
}

absl::Status ShardRouter::OnSettle(const Lane& lane) {
  if (lane.connection != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SETTLE: expected it on connection 0, found it on connection ", lane.connection));
  }
  return shard_->Settle(lane.rank);
}

absl::Status ShardRouter::OnStateRequest(const Lane& lane) {
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<const ShardState> state, shard_->ExportState());
  for (const ShardState::Piece& piece : state->pieces) {
    OutgoingFrame frame = FrameOf(proto::FrameHeader::STATE);
    frame.header.set_name(piece.name);
    SetChunk(piece.chunk, &frame.header);
    frame.payload = piece.values->bytes();
    frame.released = [state] {};
    lane.stream->Send(std::move(frame));
  }
  OutgoingFrame end = FrameOf(proto::FrameHeader::STATE_END);
  end.header.set_step(static_cast<uint64_t>(state->step));
  end.header.set_count(static_cast<uint32_t>(state->pieces.size()));
  lane.stream->Send(std::move(end));
  return absl::OkStatus();
}

absl::Status ShardRouter::OnTrace(const Lane& lane, const proto::FrameHeader& header) {
  if (recorder_ == nullptr) {
    return absl::InvalidArgumentError("TRACE: expected none, for the terms name no steps");
  }
  const int server = terms_.server_index();
  proto::ProcessTrace trace;
  if (header.count() > 0) {
    trace = TakeTrace(recorder_.get(), terms_.world_size() + server, /*server=*/true, server);
  }
  trace.set_clock(ClockName());
  trace.set_now_ns(ClockNow());
  OutgoingFrame frame = FrameOf(proto::FrameHeader::TRACE);
  SetPayload(trace.SerializeAsString(), &frame);
  lane.stream->Send(std::move(frame));
  return absl::OkStatus();
}

absl::Status ShardRouter::OnState(const Lane& lane, const proto::FrameHeader& header,
                                  const Payload& payload) {
  if (lane.rank != 0 || lane.connection != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state: expected it from rank 0 on connection 0 only, found it on ",
                     "connection ", lane.connection));
  }
  if (header.kind() == proto::FrameHeader::STATE) {
    return shard_->ImportPiece(header.name(), ChunkOf(header), payload);
  }
  GS_RETURN_IF_ERROR(shard_->FinishImport(StepOf(header).step, header.count()));
  lane.stream->Send(FrameOf(proto::FrameHeader::STATE_END));
  return absl::OkStatus();
}

void ShardRouter::OnFolded(int rank) {
  if (++folded_[rank] % credit_batch_ != 0) return;
  on_their_way_[rank] -= static_cast<int>(credit_batch_);
  OutgoingFrame frame = FrameOf(proto::FrameHeader::CREDIT);
  frame.header.set_count(credit_batch_);
  frame.urgent = true;
  Send(rank, 0, std::move(frame));
}

void ShardRouter::OnResult(ChunkId id, int64_t step, std::shared_ptr<LentBuffer> values) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PULL);
  SetChunk(id, &header);
  header.set_step(static_cast<uint64_t>(step));
  const size_t connection = results_++ % terms_.connections();
  for (int rank = 0; rank < terms_.world_size(); ++rank) {
    if (keeps_parameters_) {
      // Behind parameters that the worker has asked for meanwhile it would hold up the worker's
      // next gradients, whose memory waits for it.
      OutgoingFrame notice;
      notice.header = header;
      notice.urgent = true;
      Send(rank, connection, std::move(notice));
      continue;
    }
    SendValues(rank, connection, header, values);
    step_tx_bytes_ += static_cast<int64_t>(values->bytes().size());
  }
}

void ShardRouter::SendAnswer(int rank, proto::FrameHeader header,
                             const std::shared_ptr<LentBuffer>& values) {
  const size_t connection = answers_[rank]++ % terms_.connections();
  SendValues(rank, connection, std::move(header), values);
}

void ShardRouter::OnAnswer(ChunkId id, const ChunkClocks::Answer& answer,
                           const std::shared_ptr<LentBuffer>& values) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PULL);
  SetChunk(id, &header);
  header.set_step(static_cast<uint64_t>(answer.step));
  header.set_count(static_cast<uint32_t>(answer.staleness));
  SendAnswer(answer.rank, std::move(header), values);
  step_tx_bytes_ += static_cast<int64_t>(values->bytes().size());
}

void ShardRouter::OnDeferred(ChunkId id, const ChunkClocks::Answer& answer) {
  OutgoingFrame frame = FrameOf(proto::FrameHeader::DEFERRED);
  SetChunk(id, &frame.header);
  frame.header.set_step(static_cast<uint64_t>(answer.step));
  frame.urgent = true;
  Send(answer.rank, 0, std::move(frame));
}

void ShardRouter::OnFinal(ChunkId id, int rank, const std::shared_ptr<LentBuffer>& values) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PARAMETERS);
  SetChunk(id, &header);
  SendAnswer(rank, std::move(header), values);
}

void ShardRouter::OnSquares(int64_t step, std::vector<double> squares) {
  auto values = std::make_shared<const std::vector<double>>(std::move(squares));
  for (const std::vector<Lane>& lanes : lanes_) {
    OutgoingFrame frame = FrameOf(proto::FrameHeader::SQUARES);
    frame.header.set_step(static_cast<uint64_t>(step));
    frame.payload = absl::MakeConstSpan(reinterpret_cast<const char*>(values->data()),
                                        values->size() * sizeof(double));
    frame.released = [values] {};
    lanes[0].stream->Send(std::move(frame));
  }
}

void ShardRouter::SendValues(int rank, size_t connection, proto::FrameHeader header,
                             const std::shared_ptr<LentBuffer>& values) {
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.payload = values->bytes();
  frame.released = values->Lend();
  tx_bytes_ += static_cast<int64_t>(frame.payload.size());
  ++tx_messages_;
  RecordSend(recorder_, rank, &frame);
  Send(rank, connection, std::move(frame));
}

void ShardRouter::Count(ServerStats* stats) const {
  stats->tx_bytes = tx_bytes_;
  stats->rx_bytes = rx_bytes_;
  stats->tx_messages = tx_messages_;
  stats->rx_messages = rx_messages_;
  stats->step_tx_bytes = step_tx_bytes_;
  stats->step_rx_bytes = step_rx_bytes_;
  stats->steps = shard_->steps();
  shard_->CountTraffic(stats);
  stats->shard_bytes = shard_bytes_;
  stats->workers = terms_.world_size();
}

}  // namespace gradsync
