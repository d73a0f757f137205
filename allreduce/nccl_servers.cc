#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "allreduce/nccl_topology.h"
#include "core/base/status_macros.h"
#include "core/gpu/gpu_resources.h"
#include "core/gpu/kernel_operands.h"
#include "core/group/wire_stats.h"

namespace gradsync {
namespace {

using Message = NcclCommunicator::Message;

class NcclServers : public NcclTopology {
 public:
  NcclServers(const NcclLane& lane, const Plan& plan, int owners, UpdateSite site)
      : lane_(lane), shares_(ChunksAsShares(plan, owners)), runs_(Joined(shares_)), site_(site) {}

  absl::Status Allocate(const Plan& plan);

  const NcclShares& shares() const override { return shares_; }
  absl::Status Reduce(absl::string_view what, int bucket, float inverse_loss_scale) override;
  absl::Status Spread(absl::string_view what, int bucket) override;
  absl::Status BroadcastParameters() override;

  WireStats wire_stats() const override { return counter_.stats(); }

 private:
  std::vector<const float*> Sources(int bucket) const;
  absl::Status SendAndReceive(absl::string_view what, const std::vector<Message>& messages);

  const NcclLane lane_;
  const NcclShares shares_;
  const NcclShares runs_;
  const UpdateSite site_;
  // Contributions of other ranks to this one's chunks, each laid out as the bucket of the moment.
  // Work on one bucket ends before that on the next begins, as both are on one stream.
  std::vector<std::shared_ptr<GpuMemory>> received_;  // by rank; null for this one
  std::shared_ptr<GpuMemory> pieces_;                 // FoldPiece of this rank's chunks, by bucket
  std::vector<size_t> first_piece_;                   // by bucket, and the end
  WireCounter counter_;
};

absl::Status NcclServers::Allocate(const Plan& plan) {
  std::vector<FoldPiece> pieces;
  int64_t largest = 0;
  for (size_t b = 0; b < shares_.size(); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    first_piece_.push_back(pieces.size());
    largest = std::max(largest, plan.buckets()[b].numel);
    for (int slot = 0; slot < static_cast<int>(shares_[b].size()); ++slot) {
      // Empty chunks, which have no share, are the last.
      const NcclShare& share = shares_[b][slot];
      if (share.owner != lane_.rank) continue;
      pieces.push_back({share.range.begin, share.range.size(),
                        FoldRank(layout.chunk_of(slot), 0, lane_.world_size)});
    }
  }
  first_piece_.push_back(pieces.size());
  received_.resize(static_cast<size_t>(lane_.world_size));
  if (pieces.empty()) return absl::OkStatus();  // not an owner
  for (int rank = 0; rank < lane_.world_size; ++rank) {
    if (rank == lane_.rank) continue;
    GS_ASSIGN_OR_RETURN(
        received_[rank],
        GpuMemory::OnDevice(lane_.gpu, static_cast<size_t>(largest) * sizeof(float)));
  }
  // Kernels read them from the device's memory faster than from the host's.
  const size_t bytes = pieces.size() * sizeof(FoldPiece);
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<GpuMemory> on_host,
                      GpuMemory::Pinned(lane_.gpu, bytes));
  GS_ASSIGN_OR_RETURN(pieces_, GpuMemory::OnDevice(lane_.gpu, bytes));
  GS_ASSIGN_OR_RETURN(const ScopedEvent copied, ScopedEvent::Create(lane_.gpu));
  std::memcpy(on_host->data(), pieces.data(), bytes);
  GS_RETURN_IF_ERROR(lane_.gpu->Copy(pieces_->data(), on_host->data(), bytes, lane_.stream));
  GS_RETURN_IF_ERROR(lane_.gpu->Record(copied.get(), lane_.stream));
  return lane_.gpu->Synchronize(copied.get());
}

// All contributions to a bucket, by rank.
std::vector<const float*> NcclServers::Sources(int bucket) const {
  std::vector<const float*> sources;
  for (const std::shared_ptr<GpuMemory>& received : received_) {
    sources.push_back(received == nullptr ? (*lane_.buckets)[bucket].grad : received->floats());
  }
  return sources;
}

absl::Status NcclServers::Reduce(absl::string_view what, int bucket, float inverse_loss_scale) {
  float* const grad = (*lane_.buckets)[bucket].grad;
  std::vector<Message> messages;
  for (const NcclShare& run : runs_[bucket]) {
    const size_t bytes = static_cast<size_t>(run.range.size()) * sizeof(float);
    if (run.owner != lane_.rank) {
      messages.push_back(Message::To(run.owner, grad + run.range.begin, bytes));
      continue;
    }
    for (int rank = 0; rank < lane_.world_size; ++rank) {
      if (rank == lane_.rank) continue;
      messages.push_back(Message::From(rank, received_[rank]->floats() + run.range.begin, bytes));
    }
  }
  GS_RETURN_IF_ERROR(SendAndReceive(absl::StrCat("contributions to ", what), messages));
  const size_t begin = first_piece_[bucket];
  const size_t pieces = first_piece_[bucket + 1] - begin;
  if (pieces == 0) return absl::OkStatus();
  float* const destinations[] = {grad};
  return lane_.gpu->FoldMean(
      static_cast<const FoldPiece*>(pieces_->data()) + begin, pieces, Sources(bucket), destinations,
      1.0f / static_cast<float>(lane_.world_size), inverse_loss_scale, lane_.stream);
}

absl::Status NcclServers::Spread(absl::string_view what, int bucket) {
  const NcclBucket& memory = (*lane_.buckets)[bucket];
  float* const results = site_ == UpdateSite::kOwner ? memory.param : memory.grad;
  std::vector<Message> messages;
  for (const NcclShare& run : runs_[bucket]) {
    const size_t bytes = static_cast<size_t>(run.range.size()) * sizeof(float);
    float* const data = results + run.range.begin;
    if (run.owner != lane_.rank) {
      messages.push_back(Message::From(run.owner, data, bytes));
      continue;
    }
    for (int rank = 0; rank < lane_.world_size; ++rank) {
      if (rank != lane_.rank) messages.push_back(Message::To(rank, data, bytes));
    }
  }
  return SendAndReceive(absl::StrCat("results of ", what), messages);
}

absl::Status NcclServers::BroadcastParameters() {
  std::vector<Message> messages;
  for (const NcclBucket& bucket : lane_.buckets->all()) {
    const size_t bytes = static_cast<size_t>(bucket.numel) * sizeof(float);
    if (lane_.rank != 0) messages.push_back(Message::From(0, bucket.param, bytes));
    for (int rank = 1; lane_.rank == 0 && rank < lane_.world_size; ++rank) {
      messages.push_back(Message::To(rank, bucket.param, bytes));
    }
  }
  return SendAndReceive("the parameters", messages);
}

absl::Status NcclServers::SendAndReceive(absl::string_view what,
                                         const std::vector<Message>& messages) {
  if (messages.empty()) return absl::OkStatus();
  GS_RETURN_IF_ERROR(
      lane_.communicator->SendAndReceive(what, messages, lane_.stream, lane_.Soon()));
  for (const Message& message : messages) {
    const int64_t bytes = static_cast<int64_t>(message.bytes);
    if (message.is_send) {
      counter_.Sent(bytes);
    } else {
      counter_.Received(bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclTopology>> CreateNcclServers(const NcclLane& lane,
                                                                const Plan& plan, int owners,
                                                                UpdateSite site) {
  auto servers = std::make_unique<NcclServers>(lane, plan, owners, site);
  GS_RETURN_IF_ERROR(servers->Allocate(plan));
  return servers;
}

}  // namespace gradsync
