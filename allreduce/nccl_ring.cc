#include <cstddef>
#include <utility>
#include <vector>

#include "allreduce/nccl_topology.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// All that both sites have in common.
class NcclRing : public NcclTopology {
 public:
  NcclRing(const NcclLane& lane, NcclShares shares) : lane_(lane), shares_(std::move(shares)) {}

  const NcclShares& shares() const override { return shares_; }
  WireStats wire_stats() const override { return {}; }

  absl::Status BroadcastParameters() override {
    std::vector<NcclCommunicator::Range> ranges;
    for (const NcclBucket& b : lane_.buckets->all()) {
      ranges.push_back({b.param, static_cast<size_t>(b.numel) * sizeof(float)});
    }
    return lane_.communicator->Broadcast("the parameters", ranges, /*root=*/0, lane_.stream,
                                         lane_.Soon());
  }

 protected:
  absl::Status Scale(float* x, int64_t n, float inverse_loss_scale) const {
    return lane_.gpu->ScaleTwice(x, static_cast<size_t>(n),
                                 1.0f / static_cast<float>(lane_.world_size), inverse_loss_scale,
                                 lane_.stream);
  }

  const NcclLane lane_;

 private:
  const NcclShares shares_;
};

class AllReduce : public NcclRing {
 public:
  explicit AllReduce(const NcclLane& lane) : NcclRing(lane, {}) {}

  absl::Status Reduce(absl::string_view what, int bucket, float inverse_loss_scale) override {
    const NcclBucket& memory = (*lane_.buckets)[bucket];
    GS_RETURN_IF_ERROR(lane_.communicator->AllReduce(
        what, memory.grad, static_cast<size_t>(memory.numel), lane_.stream, lane_.Soon()));
    return Scale(memory.grad, memory.numel, inverse_loss_scale);
  }

  absl::Status Spread(absl::string_view, int) override { return absl::OkStatus(); }
};

class ReduceScatter : public NcclRing {
 public:
  explicit ReduceScatter(const NcclLane& lane)
      : NcclRing(lane, PiecesAsShares(*lane.buckets, lane.world_size)) {}

  absl::Status Reduce(absl::string_view what, int bucket, float inverse_loss_scale) override {
    const NcclBucket& memory = (*lane_.buckets)[bucket];
    GS_RETURN_IF_ERROR(lane_.communicator->ReduceScatter(
        what, memory.grad, static_cast<size_t>(memory.piece), lane_.stream, lane_.Soon()));
    const ElementRange own = memory.range(lane_.rank);
    if (own.empty()) return absl::OkStatus();
    return Scale(memory.grad + own.begin, own.size(), inverse_loss_scale);
  }

  absl::Status Spread(absl::string_view what, int bucket) override {
    const NcclBucket& memory = (*lane_.buckets)[bucket];
    return lane_.communicator->AllGather(what, memory.param,
                                         static_cast<size_t>(memory.piece) * sizeof(float),
                                         lane_.stream, lane_.Soon());
  }
};

}  // namespace

std::unique_ptr<NcclTopology> NewNcclRing(const NcclLane& lane, UpdateSite site) {
  if (site == UpdateSite::kWorker) return std::make_unique<AllReduce>(lane);
  return std::make_unique<ReduceScatter>(lane);
}

}  // namespace gradsync
