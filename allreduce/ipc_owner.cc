#include "allreduce/ipc_owner.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optim/state_mapping.h"

namespace gradsync {
namespace {

constexpr char kNoState = 0;
constexpr char kHasState = 1;

ElementRange RangeOf(const FoldPiece& piece) { return {piece.offset, piece.offset + piece.count}; }

size_t Bytes(ElementRange range) { return static_cast<size_t>(range.size()) * sizeof(float); }

}  // namespace

absl::StatusOr<std::unique_ptr<IpcOwner>> IpcOwner::Create(std::shared_ptr<GpuApi> gpu,
                                                           const IpcLayout& layout, int rank,
                                                           char* region) {
  std::unique_ptr<IpcOwner> owner(new IpcOwner(gpu, layout, region));
  size_t largest = 0;
  for (int b = 0; b < layout.buckets(); ++b) {
    std::vector<Piece>& pieces = owner->pieces_.emplace_back();
    for (const FoldPiece& piece : layout.Pieces(b, rank)) {
      const ElementRange range = RangeOf(piece);
      largest = std::max(largest, Bytes(range));
      pieces.push_back({range, DeviceRangeOptimizer(gpu, layout.plan().optimizer(), range,
                                                    layout.plan().GroupRanges(b, range))});
    }
  }
  GS_ASSIGN_OR_RETURN(owner->copied_, ScopedEvent::Create(gpu));
  GS_ASSIGN_OR_RETURN(owner->stage_, GpuMemory::Pinned(gpu, largest));
  return owner;
}

absl::Status IpcOwner::Update(int bucket, const StepOptions& step, GpuStream stream) {
  float* const grad = reinterpret_cast<float*>(region_ + layout_.grad_offset(bucket));
  float* const param = reinterpret_cast<float*>(region_ + layout_.param_offset(bucket));
  for (Piece& piece : pieces_[bucket]) {
    GS_RETURN_IF_ERROR(piece.optimizer.Apply(param + piece.range.begin, grad + piece.range.begin,
                                             step.lr, step.step, stream));
  }
  return absl::OkStatus();
}

absl::Status IpcOwner::CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream) {
  GS_RETURN_IF_ERROR(gpu_->Copy(to, from, bytes, stream));
  GS_RETURN_IF_ERROR(gpu_->Record(copied_.get(), stream));
  return gpu_->Synchronize(copied_.get());
}

// Per piece a byte that says whether there is state, then the slots.
absl::StatusOr<std::string> IpcOwner::ExportBucket(int bucket, GpuStream stream) {
  std::string bytes;
  for (const Piece& piece : pieces_[bucket]) {
    const DeviceRangeOptimizer& optimizer = piece.optimizer;
    bytes.push_back(optimizer.has_state() ? kHasState : kNoState);
    if (!optimizer.has_state()) continue;
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      GS_RETURN_IF_ERROR(CopyAndWait(stage_->data(), optimizer.slot(static_cast<int>(slot)),
                                     Bytes(piece.range), stream));
      bytes.append(static_cast<const char*>(stage_->data()), Bytes(piece.range));
    }
  }
  return bytes;
}

absl::Status IpcOwner::Collect(int bucket, int rank, absl::string_view exported,
                               OptimizerState* state) const {
  const auto lost = [&](absl::string_view what) {
    return absl::DataLossError(
        absl::StrCat("optimizer state of bucket ", bucket, " from rank ", rank, ": ", what));
  };
  std::vector<float> values;
  for (const FoldPiece& piece : layout_.Pieces(bucket, rank)) {
    const ElementRange range = RangeOf(piece);
    if (exported.empty()) return lost("ends early");
    const bool has_state = exported.front() == kHasState;
    exported.remove_prefix(1);
    if (!has_state) continue;
    values.resize(static_cast<size_t>(range.size()));
    for (const std::string& name : SlotNames(layout_.plan().optimizer())) {
      if (exported.size() < Bytes(range)) return lost("ends early");
      std::memcpy(values.data(), exported.data(), Bytes(range));
      exported.remove_prefix(Bytes(range));
      ScatterSlot(layout_.plan(), bucket, range, name, values.data(), state);
    }
  }
  if (!exported.empty()) return lost(absl::StrCat(exported.size(), " bytes too many"));
  return absl::OkStatus();
}

absl::StatusOr<OptimizerState> IpcOwner::Export(int64_t steps, GpuStream stream,
                                                SideChannel& side_channel, Deadline deadline) {
  OptimizerState state;
  state.step = steps;
  for (int b = 0; b < layout_.buckets(); ++b) {
    GS_ASSIGN_OR_RETURN(const std::string own, ExportBucket(b, stream));
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                        side_channel.AllGather(own, deadline));
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      GS_RETURN_IF_ERROR(Collect(b, static_cast<int>(rank), parts[rank], &state));
    }
  }
  return state;
}

absl::Status IpcOwner::Import(const OptimizerState& state, GpuStream stream) {
  for (int b = 0; b < layout_.buckets(); ++b) {
    for (Piece& piece : pieces_[b]) {
      piece.optimizer.ClearState();
      if (!HasState(layout_.plan(), b, piece.range, state)) continue;
      GS_RETURN_IF_ERROR(piece.optimizer.EnsureState());
      for (size_t slot = 0; slot < piece.optimizer.slot_names().size(); ++slot) {
        GatherSlot(layout_.plan(), b, piece.range, piece.optimizer.slot_names()[slot], state,
                   stage_->floats());
        GS_RETURN_IF_ERROR(CopyAndWait(piece.optimizer.slot(static_cast<int>(slot)), stage_->data(),
                                       Bytes(piece.range), stream));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace gradsync
