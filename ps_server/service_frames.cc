// What workers send after the answer to their hello, and what they are sent.

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/group/process_trace.h"
#include "core/links/frames.h"
#include "core/plan/plan_proto.h"
#include "core/plan/step_options.h"
#include "proto/step_trace.pb.h"
#include "ps_server/service.h"
#include "ps_server/service_parts.h"
#include "ps_server/window_host.h"

namespace gradsync {
namespace {

constexpr size_t kMaxWindowAddressBytes = 512;

}  // namespace

absl::Status Service::OnHost(Session& session) {
  GS_ASSIGN_OR_RETURN(const proto::Host own, OwnHost());
  OutgoingFrame frame = FrameOf(proto::FrameHeader::HOST);
  SetPayload(own.SerializeAsString(), &frame);
  session.stream->Send(std::move(frame));
  session.stream->Finish();
  return absl::OkStatus();
}

absl::Status Service::OnWindows(Session& session, const Payload& payload) {
  proto::WindowAddresses addresses;
  Group& group = *group_.load(std::memory_order_acquire);
  const size_t members = group.terms.world_size() + group.terms.weights_size();
  if (session.rank != 0 || !ParsePayload(payload, members * kMaxWindowAddressBytes, &addresses)) {
    return UnexpectedWindows();
  }
  return group.shard->Begin({addresses.addresses().begin(), addresses.addresses().end()});
}

absl::Status Service::TakeCredit(int rank) {
  Group& group = *group_.load(std::memory_order_acquire);
  const int on_their_way = ++group.on_their_way[rank];
  if (on_their_way <= group.terms.credit()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected at most ", group.terms.credit(),
                                                 " chunks without credit, found ", on_their_way));
}

absl::Status Service::OnPush(Session& session, const proto::FrameHeader& header, Payload payload) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (!session.sequence.has_value()) {
    session.sequence.emplace(&group.order, session.rank, session.connection,
                             group.terms.connections());
  }
  const StepOptions step = StepOf(header);
  GS_RETURN_IF_ERROR(CheckStep(step));
  RecordReceive(group.recorder.get(), session.rank, header, payload.size());
  GS_RETURN_IF_ERROR(TakeCredit(session.rank));
  GS_RETURN_IF_ERROR(session.sequence->Push(ChunkOf(header), step.step));
  rx_bytes_ += static_cast<int64_t>(payload.size());
  step_rx_bytes_ += static_cast<int64_t>(payload.size());
  ++rx_messages_;
  return group.shard->Push(session.rank, ChunkOf(header), step, std::move(payload));
}

absl::Status Service::OnParameters(Session& session, const proto::FrameHeader& header,
                                   const Payload& payload) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (session.rank != 0) {
    return absl::InvalidArgumentError("parameters: expected them from rank 0 only");
  }
  if (!session.sequence.has_value()) {
    session.sequence.emplace(&group.order, 0, session.connection, group.terms.connections());
  }
  GS_RETURN_IF_ERROR(TakeCredit(0));
  GS_RETURN_IF_ERROR(session.sequence->Parameters(ChunkOf(header)));
  rx_bytes_ += static_cast<int64_t>(payload.size());
  ++rx_messages_;
  const ChunkId id = ChunkOf(header);
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<LentBuffer> values,
                      group.shard->SetParameters(id, payload));
  OnFolded(0);
  OutgoingFrame reply = FrameOf(proto::FrameHeader::PARAMETERS);
  SetChunk(id, &reply.header);
  for (int rank = 1; rank < group.terms.world_size(); ++rank) {
    SendValues(rank, session.connection, reply.header, values);
  }
  session.stream->Send(std::move(reply));
  return absl::OkStatus();
}

absl::Status Service::OnShard(Session& session, const proto::FrameHeader& header) {
  Group& group = *group_.load(std::memory_order_acquire);
  GS_ASSIGN_OR_RETURN(const std::vector<Shard::KeptChunk> kept,
                      group.shard->Parameters(static_cast<int>(header.bucket())));
  for (const Shard::KeptChunk& chunk : kept) {
    proto::FrameHeader answer;
    answer.set_kind(proto::FrameHeader::SHARD);
    SetChunk(chunk.id, &answer);
    SendAnswer(session.rank, std::move(answer), chunk.values);
    step_tx_bytes_ += static_cast<int64_t>(chunk.values->bytes().size());
  }
  return absl::OkStatus();
}

absl::Status Service::OnSettle(Session& session) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (session.connection != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SETTLE: expected it on connection 0, found it on connection ", session.connection));
  }
  return group.shard->Settle(session.rank);
}

absl::Status Service::OnStateRequest(Session& session) {
  Group& group = *group_.load(std::memory_order_acquire);
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<const ShardState> state, group.shard->ExportState());
  for (const ShardState::Piece& piece : state->pieces) {
    OutgoingFrame frame = FrameOf(proto::FrameHeader::STATE);
    frame.header.set_name(piece.name);
    SetChunk(piece.chunk, &frame.header);
    frame.payload = piece.values->bytes();
    frame.released = [state] {};
    session.stream->Send(std::move(frame));
  }
  OutgoingFrame end = FrameOf(proto::FrameHeader::STATE_END);
  end.header.set_step(static_cast<uint64_t>(state->step));
  end.header.set_count(static_cast<uint32_t>(state->pieces.size()));
  session.stream->Send(std::move(end));
  return absl::OkStatus();
}

absl::Status Service::OnTrace(Session& session, const proto::FrameHeader& header) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (group.recorder == nullptr) {
    return absl::InvalidArgumentError("TRACE: expected none, for the terms name no steps");
  }
  const int server = group.terms.server_index();
  proto::ProcessTrace trace;
  if (header.count() > 0) {
    trace =
        TakeTrace(group.recorder.get(), group.terms.world_size() + server, /*server=*/true, server);
  }
  trace.set_clock(ClockName());
  trace.set_now_ns(ClockNow());
  OutgoingFrame frame = FrameOf(proto::FrameHeader::TRACE);
  SetPayload(trace.SerializeAsString(), &frame);
  session.stream->Send(std::move(frame));
  return absl::OkStatus();
}

absl::Status Service::OnState(Session& session, const proto::FrameHeader& header,
                              const Payload& payload) {
  Shard& shard = *group_.load(std::memory_order_acquire)->shard;
  if (session.rank != 0 || session.connection != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer state: expected it from rank 0 on connection 0 only, found it on ",
                     "connection ", session.connection));
  }
  if (header.kind() == proto::FrameHeader::STATE) {
    return shard.ImportPiece(header.name(), ChunkOf(header), payload);
  }
  GS_RETURN_IF_ERROR(shard.FinishImport(StepOf(header).step, header.count()));
  session.stream->Send(FrameOf(proto::FrameHeader::STATE_END));
  return absl::OkStatus();
}

void Service::OnFolded(int rank) {
  Group& group = *group_.load(std::memory_order_acquire);
  if (++group.folded[rank] % group.credit_batch != 0) return;
  group.on_their_way[rank] -= static_cast<int>(group.credit_batch);
  OutgoingFrame frame = FrameOf(proto::FrameHeader::CREDIT);
  frame.header.set_count(group.credit_batch);
  frame.urgent = true;
  group.streams[rank][0]->Send(std::move(frame));
}

void Service::OnResult(ChunkId id, int64_t step, std::shared_ptr<LentBuffer> values) {
  Group& group = *group_.load(std::memory_order_acquire);
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PULL);
  SetChunk(id, &header);
  header.set_step(static_cast<uint64_t>(step));
  const size_t connection = group.results++ % group.terms.connections();
  for (int rank = 0; rank < group.terms.world_size(); ++rank) {
    if (group.keeps_parameters) {
      // Behind parameters that the worker has asked for meanwhile it would hold up the worker's
      // next gradients, whose memory waits for it.
      OutgoingFrame notice;
      notice.header = header;
      notice.urgent = true;
      group.streams[rank][connection]->Send(std::move(notice));
      continue;
    }
    SendValues(rank, connection, header, values);
    step_tx_bytes_ += static_cast<int64_t>(values->bytes().size());
  }
}

void Service::SendAnswer(int rank, proto::FrameHeader header,
                         const std::shared_ptr<LentBuffer>& values) {
  Group& group = *group_.load(std::memory_order_acquire);
  const size_t connection = group.answers[rank]++ % group.terms.connections();
  SendValues(rank, connection, std::move(header), values);
}

void Service::OnAnswer(ChunkId id, const ChunkClocks::Answer& answer,
                       const std::shared_ptr<LentBuffer>& values) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PULL);
  SetChunk(id, &header);
  header.set_step(static_cast<uint64_t>(answer.step));
  header.set_count(static_cast<uint32_t>(answer.staleness));
  SendAnswer(answer.rank, std::move(header), values);
  step_tx_bytes_ += static_cast<int64_t>(values->bytes().size());
}

void Service::OnDeferred(ChunkId id, const ChunkClocks::Answer& answer) {
  OutgoingFrame frame = FrameOf(proto::FrameHeader::DEFERRED);
  SetChunk(id, &frame.header);
  frame.header.set_step(static_cast<uint64_t>(answer.step));
  frame.urgent = true;
  group_.load(std::memory_order_acquire)->streams[answer.rank][0]->Send(std::move(frame));
}

void Service::OnFinal(ChunkId id, int rank, const std::shared_ptr<LentBuffer>& values) {
  proto::FrameHeader header;
  header.set_kind(proto::FrameHeader::PARAMETERS);
  SetChunk(id, &header);
  SendAnswer(rank, std::move(header), values);
}

void Service::OnSquares(int64_t step, std::vector<double> squares) {
  Group& group = *group_.load(std::memory_order_acquire);
  auto values = std::make_shared<const std::vector<double>>(std::move(squares));
  for (const auto& streams : group.streams) {
    OutgoingFrame frame = FrameOf(proto::FrameHeader::SQUARES);
    frame.header.set_step(static_cast<uint64_t>(step));
    frame.payload = absl::MakeConstSpan(reinterpret_cast<const char*>(values->data()),
                                        values->size() * sizeof(double));
    frame.released = [values] {};
    streams[0]->Send(std::move(frame));
  }
}

void Service::SendValues(int rank, size_t connection, proto::FrameHeader header,
                         const std::shared_ptr<LentBuffer>& values) {
  Group& group = *group_.load(std::memory_order_acquire);
  OutgoingFrame frame;
  frame.header = std::move(header);
  frame.payload = values->bytes();
  frame.released = values->Lend();
  tx_bytes_ += static_cast<int64_t>(frame.payload.size());
  ++tx_messages_;
  RecordSend(group.recorder, rank, &frame);
  group.streams[rank][connection]->Send(std::move(frame));
}

}  // namespace gradsync
