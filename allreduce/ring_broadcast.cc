#include "allreduce/ring_broadcast.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "allreduce/ring_tokens.h"
#include "core/plan/ring_schedule.h"

namespace gradsync {

RingBroadcast::RingBroadcast(const Plan& plan, int rank, std::vector<GradBucket> buckets,
                             std::shared_ptr<RingWire> wire)
    : plan_(plan),
      rank_(rank),
      buckets_(std::move(buckets)),
      memory_(MemoryOf(buckets_)),
      wire_(std::move(wire)) {}

SyncHandle RingBroadcast::Begin(int first, int end) {
  first_ = first;
  end_ = end;
  SyncPromise promise("the broadcast of parameters");
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return ResolvedHandle(failed_);
    promise_ = promise;
    present_.clear();
    // Rank 0 has everything, but is complete only after SendAll().
    missing_ = rank_ == 0 ? 1 : 0;
    for (int bucket = 0; bucket < static_cast<int>(plan_.buckets().size()); ++bucket) {
      const StripeLayout& layout = plan_.buckets()[bucket].layout;
      const bool comes = bucket >= first && bucket < end;
      // What is not expected counts as having come.
      present_.emplace_back(layout.slots(), !comes);
      for (int slot = 0; rank_ != 0 && comes && slot < layout.slots(); ++slot) {
        if (!layout.range(slot).empty()) ++missing_;
      }
    }
  }
  ResolveIfComplete();
  return promise.handle();
}

void RingBroadcast::SendAll() {
  for (int bucket = first_; bucket < end_; ++bucket) {
    const StripeLayout& layout = plan_.buckets()[bucket].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (!layout.range(slot).empty()) Forward({bucket, slot});
    }
  }
  {
    MutexLock lock(&mutex_);
    --missing_;
  }
  ResolveIfComplete();
}

void RingBroadcast::Forward(ChunkId id) {
  if (RingNext(rank_, plan_.world_size()) == 0) return;
  {
    MutexLock lock(&mutex_);
    ++lent_;
  }
  const ElementRange range = plan_.buckets()[id.bucket].layout.range(id.slot);
  wire_->SendChunk(RingHeader(proto::FrameHeader::PARAMETERS, StepOptions(), id, rank_ + 1),
                   {reinterpret_cast<const char*>(memory_[id.bucket].param + range.begin),
                    static_cast<size_t>(range.size()) * sizeof(float)},
                   /*urgent=*/false, [self = shared_from_this()] { self->Returned(); });
}

void RingBroadcast::Returned() {
  {
    MutexLock lock(&mutex_);
    --lent_;
  }
  ResolveIfComplete();
}

absl::Status RingBroadcast::OnParameters(const proto::FrameHeader& header, Payload payload) {
  const ChunkId id{static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return absl::OkStatus();
    if (!promise_) {
      return absl::InvalidArgumentError(absl::StrCat(
          DescribeFrame(header), ": expected no parameters, for no broadcast is under way"));
    }
    if (present_[id.bucket][id.slot]) {
      return absl::InvalidArgumentError(absl::StrCat(DescribeFrame(header), ": came twice"));
    }
    present_[id.bucket][id.slot] = true;
  }
  const ElementRange range = plan_.buckets()[id.bucket].layout.range(id.slot);
  wire_->CountReceived(range.size() * 4);
  CopyPayload(payload, {ChunkForm::Kind::kFp32, range.size(), 0},
              memory_[id.bucket].param + range.begin);
  payload = Payload();
  Forward(id);
  {
    MutexLock lock(&mutex_);
    --missing_;
  }
  ResolveIfComplete();
  return absl::OkStatus();
}

void RingBroadcast::ResolveIfComplete() {
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    if (missing_ > 0 || lent_ > 0) return;
    promise.swap(promise_);
  }
  if (promise) promise->Resolve(absl::OkStatus());
}

void RingBroadcast::Fail(absl::Status status) {
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    failed_ = status;
    promise.swap(promise_);
  }
  if (promise) promise->Resolve(std::move(status));
}

}  // namespace gradsync
