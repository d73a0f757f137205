// The server's half of training without a barrier: a gradient is applied when it arrives, and
// answered with the parameters at once (asp; Dean et al., "Large Scale Distributed Deep
// Networks", NIPS 2012) or, under ssp, when no worker is further behind than the bound (Ho et
// al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server", NIPS
// 2013). chunk_clocks.h decides; docs/use/consistency.md has the rules.

#include "ps_server/async_shard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/chunk_codec.h"
#include "core/base/kernels.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/optim/range_optimizer.h"

namespace gradsync {
namespace {

absl::Status NoMemory(int64_t elements) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a chunk of ", 4 * elements, " bytes of the shard"));
}

absl::Status CopyTo(const Payload& payload, LentBuffer& to) {
  FloatCopier copier(to.data(), static_cast<size_t>(to.numel()));
  for (absl::Span<const char> part : payload.parts) {
    GS_RETURN_IF_ERROR(copier.Consume(absl::string_view(part.data(), part.size())));
  }
  return copier.Finish();
}

}  // namespace

// Everything but `clocks` belongs to the thread that owns the chunk (see chunk_clocks.h).
struct AsyncShard::Chunk {
  Chunk(ChunkId id, ElementRange range, int world_size, Consistency consistency,
        ServerEventSink sink, RangeOptimizer optimizer)
      : id(id),
        range(range),
        clocks(id, world_size, consistency, std::move(sink)),
        optimizer(std::move(optimizer)),
        param(LentBuffer::Create(range.size())),
        grad(LentBuffer::Create(range.size())) {}

  const ChunkId id;
  const ElementRange range;
  ChunkClocks clocks;
  RangeOptimizer optimizer;
  std::shared_ptr<LentBuffer> param;
  std::shared_ptr<LentBuffer> spare;  // was param; may still be lent
  std::shared_ptr<LentBuffer> grad;
  int64_t updates = 0;

  // Makes `param` one that nobody reads.
  bool MakeParamWritable(bool keep) {
    if (!param->lent()) return true;
    if (spare == nullptr || spare->lent()) {
      spare = param;
      return MakeWritable(param, keep);
    }
    param.swap(spare);
    if (keep) std::copy_n(spare->data(), spare->numel(), param->data());
    return true;
  }
};

AsyncShard::AsyncShard(int world_size, AsyncShardEvents* events)
    : world_size_(world_size), events_(events), pushes_(world_size), presence_(world_size) {}

AsyncShard::~AsyncShard() = default;

absl::StatusOr<std::unique_ptr<AsyncShard>> AsyncShard::Create(const Plan& plan,
                                                               const ShardMap& shards, int server,
                                                               Consistency consistency,
                                                               ServerEventSink sink,
                                                               AsyncShardEvents* events) {
  auto shard = absl::WrapUnique(new AsyncShard(plan.world_size(), events));
  const auto optimizer = std::make_shared<const RangeOptimizer::Shared>(
      PartialUpdateSpec(plan.optimizer(), plan.world_size()));
  std::vector<StateKeeper::Part> parts;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    std::vector<Chunk*>& slots = shard->by_id_.emplace_back(layout.slots(), nullptr);
    for (int slot = 0; slot < layout.slots(); ++slot) {
      const ChunkId id = {b, slot};
      const ElementRange range = layout.range(slot);
      if (shards.server(id) != server || range.empty()) continue;
      auto chunk =
          std::make_unique<Chunk>(id, range, plan.world_size(), consistency, sink,
                                  RangeOptimizer(optimizer, range, plan.GroupRanges(b, range)));
      if (chunk->param == nullptr || chunk->grad == nullptr) return NoMemory(range.size());
      ChunkClocks& clocks = chunk->clocks;
      parts.push_back({id, &chunk->optimizer,
                       [shard = shard.get(), &clocks] {
                         shard->CountWork();
                         return clocks.Acquire();
                       },
                       [&clocks] { clocks.Release(); }});
      slots[slot] = chunk.get();
      shard->chunks_.push_back(std::move(chunk));
    }
  }
  shard->state_ = std::make_unique<StateKeeper>(SlotNames(plan.optimizer()), std::move(parts));
  return shard;
}

absl::StatusOr<AsyncShard::Chunk*> AsyncShard::Find(ChunkId id, size_t payload_bytes) const {
  const bool known = id.bucket >= 0 && id.bucket < static_cast<int>(by_id_.size()) &&
                     id.slot >= 0 && id.slot < static_cast<int>(by_id_[id.bucket].size());
  Chunk* chunk = known ? by_id_[id.bucket][id.slot] : nullptr;
  if (chunk == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", id.bucket, " slot ", id.slot,
                     ": expected a chunk of this server, found one that it does not own"));
  }
  const int64_t expected = 4 * chunk->range.size();
  if (static_cast<int64_t>(payload_bytes) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("bucket ", id.bucket, " slot ", id.slot,
                                                   ": expected ", expected,
                                                   " bytes of payload, found ", payload_bytes));
  }
  return chunk;
}

absl::Status AsyncShard::Expects(proto::FrameHeader::Kind kind) const {
  if (kind == proto::FrameHeader::WINDOWS) return UnexpectedWindows();
  if (kind != proto::FrameHeader::NORM) return absl::OkStatus();
  return absl::InvalidArgumentError("expected no NORM under ssp and asp, found one");
}

absl::Status AsyncShard::Push(int rank, ChunkId id, const StepOptions& step, Payload payload) {
  GS_ASSIGN_OR_RETURN(Chunk * chunk, Find(id, payload.size()));
  if (step.max_norm != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " pushed step ", step.step,
                     ": expected max_norm 0, because there is no global norm without bsp, found ",
                     step.max_norm));
  }
  int64_t last = last_step_.load();
  while (last < step.step && !last_step_.compare_exchange_weak(last, step.step)) {
  }
  ++pushes_[rank];
  last_sign_ = absl::ToInt64Nanoseconds(MonotonicTime::Now().since_origin());
  GS_ASSIGN_OR_RETURN(const bool owner, chunk->clocks.Offer({rank, step, std::move(payload)}));
  return owner ? Work(*chunk) : absl::OkStatus();
}

absl::Status AsyncShard::Work(Chunk& chunk) {
  while (absl::optional<ChunkClocks::Work> work = chunk.clocks.Next()) {
    CountWork();
    if (!work->apply.has_value()) {
      Send(chunk, *work);
      continue;
    }
    const int rank = work->apply->rank;
    GS_RETURN_IF_ERROR(Apply(chunk, *work->apply));
    work.reset();  // before the credit, which says that the memory is free
    chunk.clocks.Applied(rank);
    events_->OnApplied(rank);
  }
  return absl::OkStatus();
}

absl::Status AsyncShard::Apply(Chunk& chunk, const ChunkClocks::Gradient& gradient) {
  const RecordedSpan span(recorder().get(), TraceSpan::kOptimize, gradient.step.step,
                          chunk.id.bucket, chunk.id.slot, gradient.rank);
  GS_RETURN_IF_ERROR(CopyTo(gradient.payload, *chunk.grad));
  ScaleTwice(chunk.grad->data(), static_cast<size_t>(chunk.range.size()),
             1.0f / static_cast<float>(world_size_),
             static_cast<float>(gradient.step.inverse_loss_scale));
  if (!chunk.MakeParamWritable(/*keep=*/true)) return NoMemory(chunk.range.size());
  chunk.optimizer.Apply(chunk.param->data(), chunk.grad->data(), gradient.step.lr, ++chunk.updates);
  return absl::OkStatus();
}

void AsyncShard::Send(const Chunk& chunk, const ChunkClocks::Work& work) {
  for (const ChunkClocks::Answer& answer : work.answers) {
    if (work.final) {
      presence_[answer.rank] = kTrains;
      events_->OnFinal(chunk.id, answer.rank, chunk.param);
    } else {
      events_->OnAnswer(chunk.id, answer, chunk.param);
    }
  }
  for (const ChunkClocks::Answer& answer : work.deferred) events_->OnDeferred(chunk.id, answer);
}

absl::Status AsyncShard::Depart(int rank, absl::StatusOr<bool> (ChunkClocks::*depart)(int rank)) {
  if (!chunks_.empty() && pushes_[rank] % static_cast<int64_t>(chunks_.size()) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " left in the middle of a step"));
  }
  last_sign_ = absl::ToInt64Nanoseconds(MonotonicTime::Now().since_origin());
  for (const auto& chunk : chunks_) {
    GS_ASSIGN_OR_RETURN(const bool owner, (chunk->clocks.*depart)(rank));
    if (owner) GS_RETURN_IF_ERROR(Work(*chunk));
  }
  return absl::OkStatus();
}

absl::Status AsyncShard::Settle(int rank) {
  presence_[rank] = kSettled;
  return Depart(rank, &ChunkClocks::Settle);
}

absl::Status AsyncShard::Leave(int rank) {
  if (presence_[rank].exchange(kLeft) == kLeft) return absl::OkStatus();
  return Depart(rank, &ChunkClocks::Leave);
}

std::vector<int> AsyncShard::AwaitedSince(MonotonicTime since) const {
  std::vector<int> awaited;
  bool anybody_waits = false;
  for (int rank = 0; rank < world_size_; ++rank) {
    if (presence_[rank] == kTrains) awaited.push_back(rank);
    anybody_waits = anybody_waits || presence_[rank] == kSettled;
  }
  const bool silent =
      !chunks_.empty() && absl::Nanoseconds(last_sign_.load()) < since.since_origin();
  return anybody_waits && silent ? awaited : std::vector<int>();
}

absl::StatusOr<std::shared_ptr<LentBuffer>> AsyncShard::SetParameters(ChunkId id,
                                                                      const Payload& payload) {
  GS_ASSIGN_OR_RETURN(Chunk * chunk, Find(id, payload.size()));
  GS_RETURN_IF_ERROR(chunk->clocks.Acquire());
  if (!chunk->MakeParamWritable(/*keep=*/false)) return NoMemory(chunk->range.size());
  GS_RETURN_IF_ERROR(CopyTo(payload, *chunk->param));
  std::shared_ptr<LentBuffer> kept = chunk->param;
  chunk->clocks.Release();
  return kept;
}

absl::StatusOr<std::shared_ptr<const ShardState>> AsyncShard::ExportState() {
  return state_->Export(last_step_);
}

absl::Status AsyncShard::ImportPiece(absl::string_view name, ChunkId id, const Payload& payload) {
  GS_RETURN_IF_ERROR(Find(id, payload.size()).status());
  return state_->Import(name, id, payload);
}

absl::Status AsyncShard::FinishImport(int64_t step, size_t pieces) {
  GS_RETURN_IF_ERROR(state_->Finish(step, pieces));
  for (const auto& chunk : chunks_) {
    GS_RETURN_IF_ERROR(chunk->clocks.Acquire());
    chunk->updates = step * world_size_;
    chunk->clocks.Release();
  }
  last_step_ = step;
  return absl::OkStatus();
}

bool AsyncShard::idle() const {
  return std::all_of(pushes_.begin(), pushes_.end(), [this](const std::atomic<int64_t>& pushes) {
    return chunks_.empty() || pushes % static_cast<int64_t>(chunks_.size()) == 0;
  });
}

int64_t AsyncShard::steps() const {
  if (chunks_.empty()) return 0;
  int64_t pushes = 0;
  for (const std::atomic<int64_t>& of_rank : pushes_) pushes += of_rank;
  const int64_t of_step = world_size_ * static_cast<int64_t>(chunks_.size());
  return (pushes + of_step - 1) / of_step;
}

}  // namespace gradsync
