#include "allreduce/ring_gather.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "allreduce/ring_tokens.h"
#include "core/base/kernels.h"
#include "core/plan/codec.h"
#include "core/plan/plan.h"
#include "core/plan/ring_schedule.h"

namespace gradsync {

RingGather::RingGather(const Plan& plan, int rank, std::vector<GradBucket> buckets,
                       std::shared_ptr<RingWire> wire)
    : plan_(plan),
      rank_(rank),
      buckets_(std::move(buckets)),
      memory_(MemoryOf(buckets_)),
      wire_(std::move(wire)) {
  for (const BucketPlan& bucket : plan_.buckets()) {
    offsets_.emplace_back(bucket.layout.slots(), -1);
    gathers_.emplace_back();
  }
  int64_t elements = 0;
  for (ChunkId id : OwnedChunks(plan_, rank_)) {
    offsets_[id.bucket][id.slot] = elements;
    elements += range(id).size();
  }
  shard_.resize(static_cast<size_t>(elements));
}

void RingGather::Store(int bucket) {
  for (int slot = 0; slot < static_cast<int>(offsets_[bucket].size()); ++slot) {
    const ChunkId id{bucket, slot};
    if (offsets_[bucket][slot] < 0) continue;
    Copy(shard(id), memory_[bucket].param + range(id).begin, range(id).size());
  }
}

SyncHandle RingGather::Gather(int bucket) {
  const StripeLayout& layout = plan_.buckets()[bucket].layout;
  std::vector<Frame> held;
  uint64_t number;
  SyncPromise promise(absl::StrCat("a gather of bucket ", bucket));
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return ResolvedHandle(failed_);
    Bucket& gather = gathers_[bucket];
    number = ++gather.number;
    gather.open = true;
    gather.promise = promise;
    gather.present.assign(layout.slots(), false);
    // Until the own chunks are sent, too.
    gather.missing = 1;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (layout.chunk_of(slot) != rank_ && !layout.range(slot).empty()) ++gather.missing;
    }
    held.swap(gather.held);
    for (const Frame& frame : held) gather.present[frame.header.slot()] = true;
  }
  for (int slot = 0; slot < layout.slots(); ++slot) {
    const ChunkId id{bucket, slot};
    if (offsets_[bucket][slot] < 0) continue;
    Copy(memory_[bucket].param + range(id).begin, shard(id), range(id).size());
    Send(number, id);
  }
  for (Frame& frame : held) Take(frame.header, std::move(frame.payload));
  {
    MutexLock lock(&mutex_);
    --gathers_[bucket].missing;
  }
  ResolveIfComplete(bucket);
  return promise.handle();
}

void RingGather::Send(uint64_t number, ChunkId id) {
  const int n = plan_.world_size();
  const int chunk = plan_.buckets()[id.bucket].layout.chunk_of(id.slot);
  if (!SendsGather(chunk, rank_, n)) return;
  {
    MutexLock lock(&mutex_);
    ++gathers_[id.bucket].lent;
  }
  proto::FrameHeader header =
      RingHeader(proto::FrameHeader::SHARD, StepOptions(), id, GatherHop(chunk, rank_, n) + 1);
  header.set_step(number);
  wire_->SendChunk(
      std::move(header),
      absl::MakeConstSpan(reinterpret_cast<const char*>(memory_[id.bucket].param + range(id).begin),
                          static_cast<size_t>(range(id).size()) * sizeof(float)),
      /*urgent=*/true, [self = shared_from_this(), bucket = id.bucket] { self->Returned(bucket); });
}

void RingGather::Returned(int bucket) {
  {
    MutexLock lock(&mutex_);
    --gathers_[bucket].lent;
  }
  ResolveIfComplete(bucket);
}

absl::Status RingGather::OnShard(const proto::FrameHeader& header, Payload payload) {
  {
    MutexLock lock(&mutex_);
    if (halted_ || !failed_.ok()) return absl::OkStatus();
    Bucket& gather = gathers_[header.bucket()];
    const bool now = gather.open && header.step() == gather.number;
    const bool later = header.step() == gather.number + 1;
    if (!now && !later) {
      return absl::InvalidArgumentError(absl::StrCat(DescribeFrame(header), ": expected gather ",
                                                     gather.number,
                                                     gather.open ? " or " : " to be over, and ",
                                                     gather.number + 1, ", found ", header.step()));
    }
    bool twice = now && gather.present[header.slot()];
    for (const Frame& frame : gather.held) {
      twice = twice || (later && frame.header.slot() == header.slot());
    }
    if (twice) {
      return absl::InvalidArgumentError(absl::StrCat(DescribeFrame(header), ": came twice"));
    }
    if (later) {
      gather.held.push_back({header, std::move(payload)});
      return absl::OkStatus();
    }
    gather.present[header.slot()] = true;
  }
  Take(header, std::move(payload));
  return absl::OkStatus();
}

void RingGather::Take(const proto::FrameHeader& header, Payload payload) {
  const ChunkId id{static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
  wire_->CountReceived(range(id).size() * 4);
  CopyPayload(payload, {ChunkForm::Kind::kFp32, range(id).size(), 0},
              memory_[id.bucket].param + range(id).begin);
  payload = Payload();
  Send(header.step(), id);
  {
    MutexLock lock(&mutex_);
    --gathers_[id.bucket].missing;
  }
  ResolveIfComplete(id.bucket);
}

void RingGather::ResolveIfComplete(int bucket) {
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    Bucket& gather = gathers_[bucket];
    if (halted_ || !gather.open || gather.missing > 0 || gather.lent > 0) return;
    gather.open = false;
    promise = gather.promise;
  }
  promise->Resolve(absl::OkStatus());
}

void RingGather::Halt() {
  MutexLock lock(&mutex_);
  halted_ = true;
}

void RingGather::Fail(absl::Status status) {
  std::vector<SyncPromise> open;
  std::vector<Frame> held;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return;
    failed_ = status;
    for (Bucket& gather : gathers_) {
      if (gather.open) open.push_back(gather.promise);
      gather.open = false;
      for (Frame& frame : gather.held) held.push_back(std::move(frame));
      gather.held.clear();
    }
  }
  for (const SyncPromise& promise : open) promise.Resolve(status);
}

}  // namespace gradsync
