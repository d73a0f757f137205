#include "allreduce/ipc_layout.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_api.h"
#include "core/plan/stripes.h"

namespace gradsync {
namespace {

constexpr size_t kAlignment = 256;

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

IpcLayout::IpcLayout(const Plan& plan, absl::optional<ShardMap> shards)
    : plan_(plan), shards_(std::move(shards)) {
  for (std::vector<size_t>* which : {&grads_, &params_}) {
    for (const BucketPlan& bucket : plan_.buckets()) {
      which->push_back(bytes_);
      bytes_ += RoundUp(static_cast<size_t>(bucket.bytes()), kAlignment);
    }
  }
  bytes_ = RoundUp(bytes_, GpuApi::kSharedPage);
}

absl::StatusOr<IpcLayout> IpcLayout::OfServers(const Plan& plan, int owners) {
  if (owners < 0 || owners > plan.world_size()) {
    return absl::InvalidArgumentError(absl::StrCat("owners: expected 1 to ", plan.world_size(),
                                                   ", as many as ranks, or 0 for all, found ",
                                                   owners));
  }
  const size_t count = static_cast<size_t>(owners == 0 ? plan.world_size() : owners);
  GS_ASSIGN_OR_RETURN(ShardMap shards, ShardMap::Create(plan, std::vector<double>(count, 1.0)));
  return IpcLayout(plan, std::move(shards));
}

int IpcLayout::owner(ChunkId chunk) const {
  if (shards_.has_value()) return shards_->server(chunk);
  return plan_.buckets()[chunk.bucket].layout.chunk_of(chunk.slot);
}

std::vector<ChunkId> IpcLayout::Chunks(int bucket, int rank) const {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  std::vector<ChunkId> chunks;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (!layout.range(slot).empty() && owner({bucket, slot}) == rank) {
      chunks.push_back({bucket, slot});
    }
  }
  return chunks;
}

size_t IpcLayout::MostChunks() const {
  size_t most = 0;
  for (int rank = 0; rank < ranks(); ++rank) {
    size_t chunks = 0;
    for (int b = 0; b < buckets(); ++b) chunks += Chunks(b, rank).size();
    most = std::max(most, chunks);
  }
  return most;
}

std::vector<FoldPiece> IpcLayout::Pieces(int bucket, int rank) const {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  std::vector<FoldPiece> pieces;
  for (const ChunkId chunk : Chunks(bucket, rank)) {
    const ElementRange range = layout.range(chunk.slot);
    const int first = FoldRank(layout.chunk_of(chunk.slot), 0, ranks());
    FoldPiece* const last = pieces.empty() ? nullptr : &pieces.back();
    if (last != nullptr && last->first == first && last->offset + last->count == range.begin) {
      last->count += range.size();
      continue;
    }
    FoldPiece& piece = pieces.emplace_back();
    piece.offset = range.begin;
    piece.count = range.size();
    piece.first = first;
  }
  return pieces;
}

std::vector<int> IpcLayout::Owners(int bucket) const {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  std::set<int> owners;
  for (int slot = 0; slot < layout.slots(); ++slot) {
    if (!layout.range(slot).empty()) owners.insert(owner({bucket, slot}));
  }
  return std::vector<int>(owners.begin(), owners.end());
}

WireStats IpcLayout::Traffic(int bucket, int rank) const {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  const int64_t others = ranks() - 1;
  WireStats stats;
  for (int slot = 0; slot < layout.slots() && others > 0; ++slot) {
    const int64_t bytes = layout.range(slot).size() * static_cast<int64_t>(sizeof(float));
    if (bytes == 0) continue;
    const int64_t peers = owner({bucket, slot}) == rank ? others : 1;
    stats.tx_bytes += peers * bytes;
    stats.rx_bytes += peers * bytes;
    stats.tx_messages += peers;
    stats.rx_messages += peers;
  }
  return stats;
}

WireStats IpcLayout::BroadcastTraffic(int rank) const {
  WireStats stats;
  for (const BucketPlan& bucket : plan_.buckets()) {
    if (rank == 0) {
      stats.tx_bytes += (ranks() - 1) * bucket.bytes();
      stats.tx_messages += ranks() - 1;
    } else {
      stats.rx_bytes += bucket.bytes();
      stats.rx_messages += 1;
    }
  }
  return stats;
}

}  // namespace gradsync
