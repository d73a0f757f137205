// Optimizer state to and from the servers.

#include <algorithm>
#include <utility>

#include "core/optim/optimizer_state.h"
#include "core/plan/plan_proto.h"
#include "ps_server/client/ps_engine.h"

namespace gradsync {

SyncHandle PsEngine::ExportState(OptimizerState* state) {
  std::shared_ptr<Countdown> countdown;
  {
    MutexLock lock(&mutex_);
    countdown = Begin("the export of optimizer state", static_cast<int64_t>(servers_.size()));
    transfer_ = countdown;
    exported_ = state;
    for (const auto& server : servers_) {
      server->pieces = 0;
      server->end_awaited = true;
    }
  }
  for (const auto& server : servers_) {
    OutgoingFrame frame;
    frame.header.set_kind(proto::FrameHeader::STATE_REQUEST);
    server->connection->Send(std::move(frame));
  }
  return countdown->handle();
}

void PsEngine::ForgetExport() {
  MutexLock lock(&mutex_);
  exported_ = nullptr;
}

SyncHandle PsEngine::ImportState(const OptimizerState& state) {
  std::shared_ptr<Countdown> countdown;
  {
    MutexLock lock(&mutex_);
    countdown = Begin("the import of optimizer state", static_cast<int64_t>(servers_.size()));
    transfer_ = countdown;
    exported_ = nullptr;
    for (const auto& server : servers_) server->end_awaited = true;
  }
  for (const auto& server : servers_) SendState(*server, state);
  return countdown->handle();
}

void PsEngine::SendState(Server& server, const OptimizerState& state) {
  OutgoingFrame end;
  end.header.set_kind(proto::FrameHeader::STATE_END);
  end.header.set_step(static_cast<uint64_t>(state.step));
  uint32_t pieces = 0;
  for (ChunkId id : server.order) {
    const ElementRange range = Range(id);
    // A chunk without any state is not the same as one whose state is zero
    // (core/optim/range_optimizer.h).
    const std::vector<PlacedTensor>& tensors = plan_.buckets()[id.bucket].tensors;
    const bool has_state = std::any_of(tensors.begin(), tensors.end(), [&](PlacedTensor placed) {
      const TensorSpec& tensor = plan_.tensors()[placed.tensor];
      return placed.offset < range.end && placed.offset + tensor.numel() > range.begin &&
             state.slots.count(tensor.name) > 0;
    });
    if (!has_state) continue;
    for (const std::string& name : SlotNames(plan_.optimizer())) {
      auto values = std::make_shared<std::vector<float>>(range.size());
      GatherSlot(plan_, id.bucket, range, name, state, values->data());
      OutgoingFrame frame;
      frame.header.set_kind(proto::FrameHeader::STATE);
      frame.header.set_name(name);
      SetChunk(id, &frame.header);
      frame.payload = absl::MakeConstSpan(reinterpret_cast<const char*>(values->data()),
                                          values->size() * sizeof(float));
      frame.released = [values] {};
      server.connection->Send(std::move(frame));
      ++pieces;
    }
  }
  end.header.set_count(pieces);
  server.connection->Send(std::move(end));
}

}  // namespace gradsync
