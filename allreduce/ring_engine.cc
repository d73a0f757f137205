// Ring-allreduce as in Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
// of workstations", 2009: each chunk of a stripe is a token that goes round almost twice, first
// as a partial sum to which each rank adds its own gradient (REDUCE), then as the result that
// each rank keeps (GATHER). core/plan/ring_schedule.h says who sends which chunk when, and so in
// which order contributions are added; ring_tokens.h how many tokens may be on their way. With
// update at the owner the rank that completes a sum updates the parameters before it sends them
// on.

#include "allreduce/ring_engine.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "allreduce/ring_tokens.h"
#include "core/base/status_macros.h"
#include "core/links/frames.h"
#include "core/plan/ring_schedule.h"

namespace gradsync {
namespace {

// What a launch adds up itself, of what came before it.
constexpr int64_t kSmallBucket = 64 << 10;

}  // namespace

using proto::FrameHeader;

RingEngine::RingEngine(RingEngineOptions options)
    : options_(std::move(options)),
      begins_at_once_(!options_.driver.expired() && !options_.plan.codec().compresses()),
      memory_(MemoryOf(options_.buckets)),
      wire_(std::make_shared<RingWire>(options_.plan, options_.connections, options_.send,
                                       options_.recorder,
                                       RingNext(options_.rank, options_.plan.world_size()))),
      broadcast_(
          std::make_shared<RingBroadcast>(options_.plan, options_.rank, options_.buckets, wire_)),
      gather_(options_.plan.slots().parameters == 0
                  ? nullptr
                  : std::make_shared<RingGather>(options_.plan, options_.rank, options_.buckets,
                                                 wire_)),
      owner_(options_.plan, options_.rank, options_.update_site, memory_),
      encoder_(options_.plan),
      tokens_(options_.plan, options_.rank, options_.lead,
              options_.update_site == UpdateSite::kWorker, options_.driver),
      norm_(options_.plan, options_.rank) {
  for (int b = 0; b < static_cast<int>(options_.plan.buckets().size()); ++b) {
    const int slots = options_.plan.buckets()[b].layout.slots();
    std::vector<Loan>& loans = loans_.emplace_back(2 * slots);
    for (int i = 0; i < 2 * slots; ++i) {
      loans[i].engine = this;
      loans[i].id = {b, i / 2};
      loans[i].final = i % 2 == 1;
    }
  }
}

Release RingEngine::LendTo(ChunkId id, bool final) {
  Loan& loan = loans_[id.bucket][2 * id.slot + final];
  loan.keep = shared_from_this();
  return Release(&RingEngine::LoanOver, &loan);
}

void RingEngine::LoanOver(void* over) {
  Loan& loan = *static_cast<Loan*>(over);
  // The loan may be made again as soon as the tokens know that it is over.
  const std::shared_ptr<RingEngine> engine = std::move(loan.keep);
  if (loan.final) {
    engine->FinalReturned(loan.id);
  } else {
    engine->SumReturned(loan.id);
  }
}

float* RingEngine::result(ChunkId id) const {
  const BucketMemory& bucket = memory_[id.bucket];
  return (options_.update_site == UpdateSite::kWorker ? bucket.grad : bucket.param) +
         range(id).begin;
}

SyncHandle RingEngine::Launch(const StepOptions& step, int bucket) {
  absl::StatusOr<SyncHandle> handle = ResolvedHandle(absl::OkStatus());
  bool at_once = false;  // another thread's wake-up would take longer
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return ResolvedHandle(failed_);
    if (halted_) {
      refused_.emplace_back(absl::StrCat("bucket ", bucket, " of step ", step.step));
      return refused_.back().handle();
    }
    handle = tokens_.Launch(step, bucket);
    if (handle.ok()) {
      norm_.Launched(step, bucket);
      at_once =
          begins_at_once_ && (tokens_.due(bucket) == 0 ||
                              options_.plan.buckets()[bucket].layout.numel() * 4 <= kSmallBucket);
      if (!at_once) options_.defer([this, bucket] { Begin(bucket); });
    }
  }
  if (!handle.ok()) return Refuse(handle.status());
  if (at_once) Begin(bucket);
  return *handle;
}

// Halts, reports `error`, and the handle resolves when the failure is settled.
SyncHandle RingEngine::Refuse(absl::Status error) {
  SyncPromise promise("a refused launch");
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return ResolvedHandle(failed_);
    refused_.push_back(promise);
    halted_ = true;
  }
  options_.report(std::move(error));
  return promise.handle();
}

void RingEngine::Begin(int bucket) {
  // What the lead does not admit at once is sent by the threads that bring results: a third
  // thread that writes all the time costs cores and wake-ups.
  InitiateOwn(options_.lead);
  FoldDue(bucket);
  if (options_.plan.world_size() == 1) {
    StepOptions step;
    {
      MutexLock lock(&mutex_);
      step = tokens_.step(bucket);
    }
    for (ChunkId id : owner_.chunks()) {
      if (id.bucket != bucket) continue;
      owner_.CompleteMean(id, step, nullptr);
      PassOnMean(step, id);
    }
  }
  SendSquaresIfDue();
  ResolveIfComplete(bucket);  // if it has no elements
}

void RingEngine::FoldDue(int bucket) {
  for (;;) {
    absl::optional<WaitingFrame> frame;
    StepOptions step;
    {
      MutexLock lock(&mutex_);
      frame = tokens_.TakeDue(bucket);
      step = tokens_.step(bucket);
    }
    if (!frame) return;
    Fold(step, {bucket, static_cast<int>(frame->header.slot())}, std::move(frame->payload));
  }
}

void RingEngine::InitiateOwn(int most) {
  for (int i = 0; i < most; ++i) {
    absl::optional<ChunkId> id;
    StepOptions step;
    {
      MutexLock lock(&mutex_);
      id = tokens_.NextOwn();
      if (!id) return;
      step = tokens_.step(id->bucket);
    }
    SendSum(step, *id, 1);
  }
}

void RingEngine::SendSum(const StepOptions& step, ChunkId id, int hop) {
  {
    MutexLock lock(&mutex_);
    tokens_.LendSum(id);
  }
  // Other ranks' tokens overtake those that begin here: they are nearer to their end, and their
  // initiators wait.
  wire_->SendChunk(RingHeader(FrameHeader::REDUCE, step, id, hop),
                   encoder_.EncodeGradient(id, grad(id), step.inverse_loss_scale),
                   /*urgent=*/hop > 1, LendTo(id, /*final=*/false));
}

void RingEngine::SumReturned(ChunkId id) {
  bool gather_waits;
  {
    MutexLock lock(&mutex_);
    gather_waits = tokens_.ReturnSum(id);
  }
  // This callback must not send, and copying leads to sending.
  if (gather_waits) options_.defer([this, id] { CopyDelayedFinal(id); });
  ResolveIfComplete(id.bucket);
}

void RingEngine::CopyDelayedFinal(ChunkId id) {
  absl::optional<WaitingFrame> gather;
  StepOptions step;
  {
    MutexLock lock(&mutex_);
    gather = tokens_.TakeGather(id);
    step = tokens_.step(id.bucket);
  }
  if (gather) CopyFinal(step, id, std::move(gather->payload));
}

void RingEngine::Fold(const StepOptions& step, ChunkId id, Payload payload) {
  // Counted here and not on arrival, so that what is held counts in the step that it belongs to.
  wire_->CountReceived(static_cast<int64_t>(payload.size()));
  const int n = options_.plan.world_size();
  const bool sends = SendsReduce(chunk(id), options_.rank);
  {
    const RecordedSpan span(options_.recorder.get(), TraceSpan::kFold, step.step, id.bucket,
                            id.slot);
    if (sends) {
      AddPayload(payload, GradientForm(options_.plan.codec(), range(id).size()), grad(id));
    } else {
      owner_.CompleteMean(id, step, &payload);
    }
  }
  payload = Payload();
  if (!sends) return PassOnMean(step, id);
  SendSum(step, id, ReduceHop(chunk(id), options_.rank, n) + 1);
  if (gather_ != nullptr) EndToken(id);
}

// Nothing of it comes to this rank any more.
void RingEngine::EndToken(ChunkId id) {
  {
    MutexLock lock(&mutex_);
    tokens_.MarkFinal(id);
  }
  ResolveIfComplete(id.bucket);
}

void RingEngine::PassOnMean(const StepOptions& step, ChunkId id) {
  if (!clips(step)) {
    if (options_.update_site == UpdateSite::kOwner) Update(step, id);
    return PassOnFinal(step, id);
  }
  owner_.MeasureSquares(id);
  if (options_.plan.world_size() > 1)
    wire_->SendNotice(RingHeader(FrameHeader::CREDIT, step, id, 1));
  {
    MutexLock lock(&mutex_);
    norm_.MeanComplete();
  }
  SendSquaresIfDue();
}

void RingEngine::Update(const StepOptions& step, ChunkId id) {
  const RecordedSpan span(options_.recorder.get(), TraceSpan::kOptimize, step.step, id.bucket,
                          id.slot);
  if (gather_ != nullptr) return owner_.Update(id, step, gather_->shard(id));
  owner_.Update(id, step);
}

void RingEngine::CopyFinal(const StepOptions& step, ChunkId id, Payload payload) {
  wire_->CountReceived(static_cast<int64_t>(payload.size()));
  {
    const RecordedSpan span(options_.recorder.get(), TraceSpan::kCopy, step.step, id.bucket,
                            id.slot);
    CopyPayload(payload,
                ReturnedForm(options_.plan.codec(), range(id).size(), options_.plan.world_size(),
                             returned()),
                result(id));
  }
  payload = Payload();
  PassOnFinal(step, id);
}

void RingEngine::PassOnFinal(const StepOptions& step, ChunkId id) {
  const int n = options_.plan.world_size();
  if (gather_ != nullptr) {
    // One that clips has told it with the mean.
    if (n > 1 && !clips(step)) wire_->SendNotice(RingHeader(FrameHeader::CREDIT, step, id, 1));
    return EndToken(id);
  }
  const bool sends = SendsGather(chunk(id), options_.rank, n);
  {
    MutexLock lock(&mutex_);
    tokens_.MarkFinal(id);
    if (sends) tokens_.LendFinal(id);
  }
  if (sends) {
    const int hop = GatherHop(chunk(id), options_.rank, n) + 1;
    wire_->SendChunk(RingHeader(FrameHeader::GATHER, step, id, hop),
                     encoder_.EncodeReturned(id, result(id), returned()),
                     /*urgent=*/true, LendTo(id, /*final=*/true));
  }
  ResolveIfComplete(id.bucket);
}

void RingEngine::FinalReturned(ChunkId id) {
  {
    MutexLock lock(&mutex_);
    tokens_.ReturnFinal(id);
  }
  ResolveIfComplete(id.bucket);
}

void RingEngine::ResolveIfComplete(int bucket) {
  absl::optional<SyncPromise> promise;
  {
    MutexLock lock(&mutex_);
    if (!halted_) promise = tokens_.TakeResolved(bucket);
  }
  if (promise) promise->Resolve(absl::OkStatus());
}

absl::Status RingEngine::OnFrame(const FrameHeader& header, Payload payload) {
  GS_RETURN_IF_ERROR(
      CheckRingFrame(options_.plan, options_.rank, header, payload.size(), returned()));
  RecordReceive(options_.recorder.get(), RingPrevious(options_.rank, options_.plan.world_size()),
                header, payload.size());
  switch (header.kind()) {
    case FrameHeader::REDUCE:
      return OnReduce(header, std::move(payload));
    case FrameHeader::GATHER:
      if (gather_ != nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            DescribeFrame(header), ": expected none, for owners alone keep parameters"));
      }
      return OnGather(header, std::move(payload));
    case FrameHeader::CREDIT:
      return OnCredit(header);
    case FrameHeader::SQUARES:
      return OnSquares(header, payload);
    case FrameHeader::SHARD:
      if (gather_ == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(
            DescribeFrame(header), ": expected none, for every rank keeps all parameters"));
      }
      return gather_->OnShard(header, std::move(payload));
    default:
      return broadcast_->OnParameters(header, std::move(payload));
  }
}

absl::Status RingEngine::OnReduce(const FrameHeader& header, Payload payload) {
  const ChunkId id{static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
  StepOptions step;
  bool now = false;
  {
    MutexLock lock(&mutex_);
    if (halted_) return absl::OkStatus();
    GS_ASSIGN_OR_RETURN(now, tokens_.OnReduce(header, &payload));
    step = tokens_.step(id.bucket);
  }
  if (now) Fold(step, id, std::move(payload));
  return absl::OkStatus();
}

absl::Status RingEngine::OnGather(const FrameHeader& header, Payload payload) {
  const ChunkId id{static_cast<int>(header.bucket()), static_cast<int>(header.slot())};
  StepOptions step;
  bool now = false;
  {
    MutexLock lock(&mutex_);
    if (halted_) return absl::OkStatus();
    GS_ASSIGN_OR_RETURN(now, tokens_.OnGather(header, &payload));
    step = tokens_.step(id.bucket);
  }
  if (now) CopyFinal(step, id, std::move(payload));
  InitiateOwn(options_.lead);
  return absl::OkStatus();
}

absl::Status RingEngine::OnCredit(const FrameHeader& header) {
  if (gather_ == nullptr &&
      (options_.update_site == UpdateSite::kWorker || header.max_norm() <= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(DescribeFrame(header), ": expected none, for owners do not clip"));
  }
  {
    MutexLock lock(&mutex_);
    if (halted_) return absl::OkStatus();
    GS_RETURN_IF_ERROR(tokens_.OnCredit(header));
  }
  if (gather_ != nullptr) {
    EndToken({static_cast<int>(header.bucket()), static_cast<int>(header.slot())});
  }
  InitiateOwn(options_.lead);
  return absl::OkStatus();
}

absl::Status RingEngine::OnSquares(const FrameHeader& header, const Payload& payload) {
  const int n = options_.plan.world_size();
  if (options_.update_site == UpdateSite::kWorker) {
    return absl::InvalidArgumentError("SQUARES: expected none, for the workers clip");
  }
  const std::string bytes = payload.Flat();
  auto squares = std::make_shared<std::vector<double>>(bytes.size() / sizeof(double));
  if (!squares->empty()) {
    std::memcpy(squares->data(), bytes.data(), squares->size() * sizeof(double));
  }
  {
    MutexLock lock(&mutex_);
    if (halted_) return absl::OkStatus();
    // An owner that has none itself only passes them on.
    if (!owner_.chunks().empty()) {
      GS_RETURN_IF_ERROR(norm_.Set(static_cast<int>(header.slot()), header, squares));
    }
  }
  if (static_cast<int>(header.hop()) < n - 1) {
    FrameHeader next = header;
    next.set_hop(header.hop() + 1);
    wire_->SendNumbers(std::move(next), std::move(squares));
  }
  ClipIfDue();
  return absl::OkStatus();
}

void RingEngine::SendSquaresIfDue() {
  RingNorm::Numbers squares;
  FrameHeader header;
  {
    MutexLock lock(&mutex_);
    if (options_.update_site == UpdateSite::kWorker || halted_ || !norm_.TakeOwnDue()) return;
    squares = std::make_shared<const std::vector<double>>(owner_.squares());
    header = RingHeader(FrameHeader::SQUARES, norm_.step(), {0, options_.rank}, 1);
    norm_.Set(options_.rank, header, squares).IgnoreError();  // it is our own step, and due once
  }
  if (options_.plan.world_size() > 1) wire_->SendNumbers(std::move(header), std::move(squares));
  ClipIfDue();
}

void RingEngine::ClipIfDue() {
  absl::optional<double> scale;
  StepOptions step;
  {
    MutexLock lock(&mutex_);
    scale = norm_.TakeScale();
    step = norm_.step();
  }
  if (!scale) return;
  options_.defer([this, step, scale = *scale] { UpdateClipped(step, scale); });
}

void RingEngine::UpdateClipped(const StepOptions& step, double scale) {
  for (ChunkId id : owner_.chunks()) {
    if (scale < 1) owner_.ScaleMean(id, static_cast<float>(scale));
    Update(step, id);
    PassOnFinal(step, id);
  }
}

void RingEngine::Halt() {
  if (gather_ != nullptr) gather_->Halt();
  MutexLock lock(&mutex_);
  halted_ = true;
}

void RingEngine::Fail(absl::Status status) {
  RingTokens::Remains remains;
  std::vector<SyncPromise> refused;
  {
    MutexLock lock(&mutex_);
    if (!failed_.ok()) return;
    failed_ = status;
    halted_ = true;
    remains = tokens_.FailAll();
    refused.swap(refused_);
  }
  for (const SyncPromise& promise : remains.promises) promise.Resolve(status);
  for (const SyncPromise& promise : refused) promise.Resolve(status);
  if (gather_ != nullptr) gather_->Fail(status);
  broadcast_->Fail(std::move(status));
}

}  // namespace gradsync
