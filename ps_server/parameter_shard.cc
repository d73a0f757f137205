// The server's half of synchronous training: contributions to a chunk are added as they come, but
// in the plan's order (core/plan/stripes.h), one that is early waits in the memory in which it
// came (ChunkTurns). So the mean has the bits that a ring has. With the last contribution the
// chunk is complete: its mean is returned, or the parameters after the optimizer's update.

#include "ps_server/parameter_shard.h"

#include <cstddef>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/chunk_codec.h"
#include "core/base/kernels.h"
#include "core/base/status_macros.h"
#include "core/base/trace_recorder.h"
#include "core/optim/range_optimizer.h"
#include "core/plan/stripes.h"

namespace gradsync {

ChunkTurns::ChunkTurns(int chunk, int world_size) : chunk_(chunk), world_size_(world_size) {}

absl::StatusOr<bool> ChunkTurns::Offer(int rank, Payload payload) {
  const int position = FoldPosition(chunk_, rank, world_size_);
  MutexLock lock(&mutex_);
  if (owner_ == Owner::kAcquired) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " pushed a chunk while its parameters or state are being set"));
  }
  if (position < next_ || held_.contains(position)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank, " pushed a chunk twice in one step"));
  }
  held_.emplace(position, std::move(payload));
  if (owner_ != Owner::kNobody || position != next_) return false;
  owner_ = Owner::kFolder;
  return true;
}

absl::optional<ChunkTurns::Turn> ChunkTurns::Next() {
  MutexLock lock(&mutex_);
  const auto held = held_.find(next_);
  if (held == held_.end()) {
    owner_ = Owner::kNobody;
    return absl::nullopt;
  }
  Turn turn;
  turn.rank = FoldRank(chunk_, next_, world_size_);
  turn.first = next_ == 0;
  turn.last = next_ == world_size_ - 1;
  turn.payload = std::move(held->second);
  held_.erase(held);
  ++next_;
  return turn;
}

absl::Status ChunkTurns::Acquire() {
  MutexLock lock(&mutex_);
  if (owner_ != Owner::kNobody || next_ != 0 || !held_.empty()) {
    return absl::FailedPreconditionError("expected a time between steps, found a fold under way");
  }
  owner_ = Owner::kAcquired;
  return absl::OkStatus();
}

void ChunkTurns::Restart() {
  constexpr size_t kKept = 15;  // entries: with more workers the table is made anew in each step
  MutexLock lock(&mutex_);
  if (held_.capacity() > kKept) absl::flat_hash_map<int, Payload>().swap(held_);
  next_ = 0;
  owner_ = Owner::kNobody;
}

namespace {

absl::Status NoMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for a chunk of ", bytes, " bytes of the shard"));
}

template <typename Taker>
absl::Status Consume(const Payload& payload, Taker to) {
  for (absl::Span<const char> part : payload.parts) {
    GS_RETURN_IF_ERROR(to.Consume(absl::string_view(part.data(), part.size())));
  }
  return to.Finish();
}

// Bytes, a multiple of every value's size. What is read and written for it stays in the L1 cache.
constexpr size_t kBlock = 8 << 10;

// Gives a payload to a decoder in blocks.
class BlockFeeder {
 public:
  BlockFeeder(const Payload& payload, ChunkDecoder to) : payload_(payload), to_(to) {}

  // False when there is no more.
  absl::StatusOr<bool> Feed(size_t bytes) {
    while (bytes > 0 && part_ < payload_.parts.size()) {
      const absl::Span<const char> part = payload_.parts[part_].subspan(at_, bytes);
      GS_RETURN_IF_ERROR(to_.Consume(absl::string_view(part.data(), part.size())));
      bytes -= part.size();
      at_ += part.size();
      if (at_ < payload_.parts[part_].size()) continue;
      ++part_;
      at_ = 0;
    }
    return part_ < payload_.parts.size();
  }
  absl::Status Finish() { return to_.Finish(); }

 private:
  const Payload& payload_;
  ChunkDecoder to_;
  size_t part_ = 0;
  size_t at_ = 0;  // within the part
};

// Block by block, so that what `first_to` has written is still in the cache when `second_to` adds
// to it.
absl::Status ConsumeBoth(const Payload& first, ChunkDecoder first_to, const Payload& second,
                         ChunkDecoder second_to, size_t block) {
  BlockFeeder copy(first, first_to), add(second, second_to);
  for (bool more = true; more;) {
    GS_ASSIGN_OR_RETURN(const bool more_first, copy.Feed(block));
    GS_ASSIGN_OR_RETURN(const bool more_second, add.Feed(block));
    more = more_first || more_second;
  }
  GS_RETURN_IF_ERROR(copy.Finish());
  return add.Finish();
}

}  // namespace

// Everything but `turns` belongs to the thread that owns the chunk (see ChunkTurns).
struct ParameterShard::Chunk {
  Chunk(ChunkId id, ElementRange range, int chunk, int world_size)
      : id(id), range(range), turns(chunk, world_size) {}

  const ChunkId id;
  const ElementRange range;
  ChunkTurns turns;
  std::shared_ptr<LentBuffer> sums[2];
  int current = 0;                         // of sums
  absl::optional<ChunkTurns::Turn> first;  // held until the second can be added
  std::shared_ptr<LentBuffer> param;
  std::shared_ptr<LentBuffer> published;  // the same as others may ask for it, by published_mutex_
  std::shared_ptr<LentBuffer> encoded;    // the mean, under update at the worker with compression
  absl::optional<RangeOptimizer> optimizer;  // under update at the owner
  double squares = 0;

  float* sum() { return sums[current]->data(); }
};

ParameterShard::ParameterShard(const Plan& plan, proto::UpdateSite site, bool holds_first,
                               int chunks, ShardEvents* events)
    : world_size_(plan.world_size()),
      codec_(plan.codec()),
      site_(site),
      holds_first_(holds_first),
      keeps_parameters_(plan.slots().parameters > 0),
      events_(events),
      progress_(chunks, plan.world_size()) {}

ParameterShard::~ParameterShard() = default;

absl::StatusOr<std::unique_ptr<ParameterShard>> ParameterShard::Create(
    const Plan& plan, const ShardMap& shards, int server, proto::UpdateSite site, bool holds_first,
    ShardEvents* events) {
  std::vector<ChunkId> ids;
  for (int b = 0; b < static_cast<int>(plan.buckets().size()); ++b) {
    const StripeLayout& layout = plan.buckets()[b].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (shards.server({b, slot}) == server && !layout.range(slot).empty()) {
        ids.push_back({b, slot});
      }
    }
  }
  auto shard = absl::WrapUnique(
      new ParameterShard(plan, site, holds_first, static_cast<int>(ids.size()), events));
  for (const BucketPlan& bucket : plan.buckets()) {
    shard->by_id_.emplace_back(bucket.layout.slots(), nullptr);
  }
  const auto optimizer = std::make_shared<const RangeOptimizer::Shared>(plan.optimizer());
  for (ChunkId id : ids) {
    const StripeLayout& layout = plan.buckets()[id.bucket].layout;
    const ElementRange range = layout.range(id.slot);
    auto chunk = std::make_unique<Chunk>(id, range, layout.chunk_of(id.slot), layout.world_size());
    chunk->sums[0] = LentBuffer::Create(range.size());
    if (site == proto::OWNER) {
      chunk->param = LentBuffer::Create(range.size());
      chunk->published = chunk->param;
      chunk->optimizer.emplace(optimizer, range, plan.GroupRanges(id.bucket, range));
    } else if (plan.codec().compresses()) {
      chunk->encoded = LentBuffer::CreateBytes(
          ReturnedForm(plan.codec(), range.size(), plan.world_size(), Returned::kMean).bytes());
    } else {
      chunk->sums[1] = LentBuffer::Create(range.size());
    }
    const std::shared_ptr<LentBuffer>& second = site == proto::OWNER        ? chunk->param
                                                : plan.codec().compresses() ? chunk->encoded
                                                                            : chunk->sums[1];
    if (chunk->sums[0] == nullptr || second == nullptr) return NoMemory(4 * range.size());
    shard->by_id_[id.bucket][id.slot] = chunk.get();
    shard->chunks_.push_back(std::move(chunk));
  }
  shard->chunk_ids_ = std::move(ids);
  if (site == proto::OWNER) shard->state_ = shard->MakeStateKeeper(SlotNames(plan.optimizer()));
  return shard;
}

std::unique_ptr<StateKeeper> ParameterShard::MakeStateKeeper(std::vector<std::string> slot_names) {
  std::vector<StateKeeper::Part> parts;
  for (const auto& chunk : chunks_) {
    ChunkTurns& turns = chunk->turns;
    parts.push_back({chunk->id, &*chunk->optimizer,
                     [this, &turns] {
                       CountWork();
                       return turns.Acquire();
                     },
                     [&turns] { turns.Restart(); }});
  }
  return std::make_unique<StateKeeper>(std::move(slot_names), std::move(parts));
}

absl::StatusOr<ParameterShard::Chunk*> ParameterShard::Find(ChunkId id, size_t payload_bytes,
                                                            Codec codec) const {
  const bool known = id.bucket >= 0 && id.bucket < static_cast<int>(by_id_.size()) &&
                     id.slot >= 0 && id.slot < static_cast<int>(by_id_[id.bucket].size());
  Chunk* chunk = known ? by_id_[id.bucket][id.slot] : nullptr;
  if (chunk == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket ", id.bucket, " slot ", id.slot,
                     ": expected a chunk of this server, found one that it does not own"));
  }
  const int64_t expected = GradientForm(codec, chunk->range.size()).bytes();
  if (static_cast<int64_t>(payload_bytes) != expected) {
    return absl::InvalidArgumentError(absl::StrCat("bucket ", id.bucket, " slot ", id.slot,
                                                   ": expected ", expected,
                                                   " bytes of payload, found ", payload_bytes));
  }
  return chunk;
}

absl::Status ParameterShard::Expects(proto::FrameHeader::Kind kind) const {
  if (kind == proto::FrameHeader::WINDOWS) return UnexpectedWindows();
  if (kind != proto::FrameHeader::SETTLE) return absl::OkStatus();
  return absl::InvalidArgumentError("SETTLE: expected it under ssp or asp, found it under bsp");
}

absl::Status ParameterShard::Push(int rank, ChunkId id, const StepOptions& step, Payload payload) {
  GS_ASSIGN_OR_RETURN(Chunk * chunk, Find(id, payload.size(), codec_));
  GS_RETURN_IF_ERROR(progress_.Enter(rank, step));
  GS_ASSIGN_OR_RETURN(const bool owner, chunk->turns.Offer(rank, std::move(payload)));
  return owner ? Fold(*chunk) : absl::OkStatus();
}

absl::Status ParameterShard::Fold(Chunk& chunk) {
  while (absl::optional<ChunkTurns::Turn> turn = chunk.turns.Next()) {
    if (turn->first) {
      if (sends_sums()) chunk.current ^= 1;
      if (!MakeWritable(chunk.sums[chunk.current], /*keep=*/false)) {
        return NoMemory(4 * chunk.range.size());
      }
    }
    if (turn->first && holds_first_ && !turn->last) {
      chunk.first = *std::move(turn);
      continue;
    }
    GS_RETURN_IF_ERROR(Take(chunk, *turn));
    const int rank = turn->rank;
    const bool last = turn->last;
    turn.reset();  // before the credit, which says that the memory is free
    if (chunk.first.has_value()) {
      const int first = chunk.first->rank;
      chunk.first.reset();
      events_->OnFolded(first);
    }
    events_->OnFolded(rank);
    if (last) return FinishFold(chunk);
  }
  return absl::OkStatus();
}

// Adds a contribution, together with the one before it if that is held; the last one is scaled in
// the same pass.
absl::Status ParameterShard::Take(Chunk& chunk, const ChunkTurns::Turn& turn) {
  const StepOptions step = progress_.step();
  const RecordedSpan span(recorder().get(), TraceSpan::kFold, step.step, chunk.id.bucket,
                          chunk.id.slot, turn.rank);
  const ChunkForm form = GradientForm(codec_, chunk.range.size());
  const float inverse_n = 1.0f / static_cast<float>(world_size_);
  const float inverse_loss_scale = static_cast<float>(step.inverse_loss_scale);
  if (turn.first) {
    GS_RETURN_IF_ERROR(
        Consume(turn.payload, ChunkDecoder(form, ChunkDecoder::Mode::kCopy, chunk.sum())));
    if (turn.last) ScaleTwice(chunk.sum(), chunk.range.size(), inverse_n, inverse_loss_scale);
    return absl::OkStatus();
  }
  const ChunkDecoder add(form,
                         turn.last ? ChunkDecoder::Mode::kAddAndScale : ChunkDecoder::Mode::kAdd,
                         chunk.sum(), inverse_n, inverse_loss_scale);
  if (!chunk.first.has_value()) return Consume(turn.payload, add);
  return ConsumeBoth(chunk.first->payload,
                     ChunkDecoder(form, ChunkDecoder::Mode::kCopy, chunk.sum()), turn.payload, add,
                     codec_.sparse() ? turn.payload.size() : kBlock);
}

absl::Status ParameterShard::FinishFold(Chunk& chunk) {
  const StepOptions step = progress_.step();
  RoundMean(codec_, chunk.sum(), chunk.range.size());
  if (!at_owner() || step.max_norm <= 0) return Finish(chunk, step);
  chunk.squares = SumOfSquares(chunk.sum(), chunk.range.size());
  if (!progress_.ChunkFolded()) return absl::OkStatus();
  std::vector<double> squares;
  for (const auto& each : chunks_) squares.push_back(each->squares);
  events_->OnSquares(step.step, std::move(squares));
  return absl::OkStatus();
}

absl::Status ParameterShard::Norm(int rank, int64_t step_number, double norm) {
  GS_ASSIGN_OR_RETURN(const bool complete, progress_.AddNorm(rank, step_number, norm));
  if (!complete) return absl::OkStatus();
  const StepOptions step = progress_.step();
  const double scale = step.max_norm / (norm + 1e-6);
  for (const auto& chunk : chunks_) {
    if (scale < 1) Scale(chunk->sum(), chunk->range.size(), static_cast<float>(scale));
    GS_RETURN_IF_ERROR(Finish(*chunk, step));
  }
  return absl::OkStatus();
}

// The order matters: once the result is on its way, workers may push the next step.
absl::Status ParameterShard::Finish(Chunk& chunk, const StepOptions& step) {
  CountWork();  // the last rank's NORM is a call that finishes all chunks
  std::shared_ptr<LentBuffer> result = chunk.sums[chunk.current];
  if (at_owner()) {
    if (!MakeWritable(chunk.param, /*keep=*/true)) return NoMemory(4 * chunk.range.size());
    const RecordedSpan span(recorder().get(), TraceSpan::kOptimize, step.step, chunk.id.bucket,
                            chunk.id.slot);
    chunk.optimizer->Apply(chunk.param->data(), chunk.sum(), step.lr, step.step);
    result = chunk.param;
    Publish(chunk);
  } else if (codec_.compresses()) {
    if (!MakeWritable(chunk.encoded, /*keep=*/false)) return NoMemory(4 * chunk.range.size());
    EncodeChunk(ReturnedForm(codec_, chunk.range.size(), world_size_, Returned::kMean), chunk.sum(),
                chunk.encoded->mutable_bytes());
    result = chunk.encoded;
  }
  chunk.turns.Restart();
  progress_.ChunkFinished();
  events_->OnResult(chunk.id, step.step, std::move(result));
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LentBuffer>> ParameterShard::SetParameters(ChunkId id,
                                                                          const Payload& payload) {
  GS_ASSIGN_OR_RETURN(Chunk * chunk, Find(id, payload.size(), Codec()));
  GS_RETURN_IF_ERROR(chunk->turns.Acquire());
  std::shared_ptr<LentBuffer>& to = at_owner() ? chunk->param : chunk->sums[chunk->current];
  if (!MakeWritable(to, /*keep=*/false)) return NoMemory(4 * chunk->range.size());
  GS_RETURN_IF_ERROR(Consume(payload, FloatCopier(to->data(), chunk->range.size())));
  std::shared_ptr<LentBuffer> kept = to;
  if (at_owner()) Publish(*chunk);
  chunk->turns.Restart();
  return kept;
}

void ParameterShard::Publish(Chunk& chunk) {
  if (!keeps_parameters_) return;
  MutexLock lock(&published_mutex_);
  chunk.published = chunk.param;
}

absl::StatusOr<std::vector<Shard::KeptChunk>> ParameterShard::Parameters(int bucket) {
  if (!keeps_parameters_ || bucket < 0 || bucket >= static_cast<int>(by_id_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("SHARD: expected it where servers alone keep parameters, of a bucket below ",
                     by_id_.size(), ", found bucket ", bucket));
  }
  std::vector<KeptChunk> kept;
  MutexLock lock(&published_mutex_);
  for (const Chunk* chunk : by_id_[bucket]) {
    if (chunk != nullptr) kept.push_back({chunk->id, chunk->published});
  }
  return kept;
}

absl::Status ParameterShard::CheckStateAccess() const {
  if (!at_owner()) {
    return absl::FailedPreconditionError(
        "optimizer state: expected update at the owner, found update at the worker");
  }
  if (!idle()) {
    return absl::FailedPreconditionError(
        absl::StrCat("optimizer state: expected a time between steps, found step ",
                     progress_.step().step, " under way"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ShardState>> ParameterShard::ExportState() {
  GS_RETURN_IF_ERROR(CheckStateAccess());
  return state_->Export(progress_.step().step);
}

absl::Status ParameterShard::ImportPiece(absl::string_view name, ChunkId id,
                                         const Payload& payload) {
  GS_RETURN_IF_ERROR(CheckStateAccess());
  GS_RETURN_IF_ERROR(Find(id, payload.size(), Codec()).status());
  return state_->Import(name, id, payload);
}

absl::Status ParameterShard::FinishImport(int64_t step, size_t pieces) {
  GS_RETURN_IF_ERROR(CheckStateAccess());
  GS_RETURN_IF_ERROR(state_->Finish(step, pieces));
  progress_.SetLastStep(step);
  return absl::OkStatus();
}

}  // namespace gradsync
