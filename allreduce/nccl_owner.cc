#include "allreduce/nccl_owner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optim/state_mapping.h"

namespace gradsync {
namespace {

// The order of addition within a block leaves a GPU little to do side by side, so there are many. A
// chunk is one block, as in other backends.
constexpr int64_t kSquaresBlock = 64 << 10;

constexpr char kNoState = 0;
constexpr char kHasState = 1;

// StepOptions as they travel between GPUs.
struct StepNote {
  int64_t step = 0;
  double lr = 0;
  double max_norm = 0;
  double inverse_loss_scale = 0;

  explicit StepNote(const StepOptions& options)
      : step(options.step),
        lr(options.lr),
        max_norm(options.max_norm),
        inverse_loss_scale(options.inverse_loss_scale) {}

  StepOptions options() const {
    StepOptions options;
    options.step = step;
    options.lr = lr;
    options.max_norm = max_norm;
    options.inverse_loss_scale = inverse_loss_scale;
    return options;
  }
};

absl::Status CheckNotes(const StepNote* notes, int ranks, int own) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (notes[rank].options() == notes[own].options()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("expected ", DescribeStep(notes[own].options()), " as at rank ", own,
                     ", found ", DescribeStep(notes[rank].options()), " at rank ", rank));
  }
  return absl::OkStatus();
}

}  // namespace

NcclOwner::NcclOwner(std::shared_ptr<GpuApi> gpu, std::shared_ptr<const NcclBuckets> buckets,
                     const Plan& plan, int rank, const NcclShares& shares)
    : gpu_(std::move(gpu)),
      buckets_(std::move(buckets)),
      plan_(plan),
      rank_(rank),
      shares_(shares),
      runs_(Joined(shares)) {
  for (int b = 0; b < static_cast<int>(runs_.size()); ++b) {
    std::vector<Part>& parts = parts_.emplace_back();
    for (const NcclShare& run : runs_[b]) {
      if (run.owner != rank_) continue;
      parts.push_back({run.range, DeviceRangeOptimizer(gpu_, plan_.optimizer(), run.range,
                                                       plan_.GroupRanges(b, run.range))});
    }
  }
}

// Every rank's blocks have places of their own in squares_, in the order of the blocks.
std::vector<SquaresPiece> NcclOwner::CutIntoBlocks() {
  std::vector<size_t> count(static_cast<size_t>(plan_.world_size()));
  std::vector<int> owners;  // of all blocks
  std::vector<SquaresPiece> own;
  for (int b = 0; b < static_cast<int>(shares_.size()); ++b) {
    for (const NcclShare& share : shares_[b]) {
      for (int64_t begin = share.range.begin; begin < share.range.end; begin += kSquaresBlock) {
        owners.push_back(share.owner);
        ++count[share.owner];
        if (share.owner != rank_) continue;
        own.push_back(
            {(*buckets_)[b].grad + begin, std::min(share.range.end - begin, kSquaresBlock)});
      }
    }
  }
  squares_per_rank_ = *std::max_element(count.begin(), count.end());
  std::vector<size_t> next(count.size());
  for (size_t owner = 0; owner < next.size(); ++owner) next[owner] = owner * squares_per_rank_;
  for (const int owner : owners) places_.push_back(next[owner]++);
  return own;
}

absl::StatusOr<std::unique_ptr<NcclOwner>> NcclOwner::Create(
    std::shared_ptr<GpuApi> gpu, std::shared_ptr<const NcclBuckets> buckets, const Plan& plan,
    int rank, const NcclShares& shares) {
  std::unique_ptr<NcclOwner> owner(new NcclOwner(gpu, std::move(buckets), plan, rank, shares));
  const size_t ranks = static_cast<size_t>(plan.world_size());
  GS_ASSIGN_OR_RETURN(owner->copied_, ScopedEvent::Create(gpu));
  GS_ASSIGN_OR_RETURN(owner->steps_, GpuMemory::Pinned(gpu, ranks * sizeof(StepNote)));
  const std::vector<SquaresPiece> blocks = owner->CutIntoBlocks();
  owner->num_blocks_ = blocks.size();
  GS_ASSIGN_OR_RETURN(owner->blocks_, GpuMemory::Pinned(gpu, blocks.size() * sizeof(SquaresPiece)));
  std::copy(blocks.begin(), blocks.end(), static_cast<SquaresPiece*>(owner->blocks_->data()));
  GS_ASSIGN_OR_RETURN(owner->squares_,
                      GpuMemory::Pinned(gpu, ranks * owner->squares_per_rank_ * sizeof(double)));
  GS_ASSIGN_OR_RETURN(owner->factor_, GpuMemory::Pinned(gpu, sizeof(float)));
  return owner;
}

// The host may be steps ahead of the stream, so it writes its note when the stream comes to it.
absl::Status NcclOwner::CompareSteps(const StepOptions& step, NcclCommunicator& communicator,
                                     std::function<void(absl::Status)> refuse, GpuStream stream,
                                     Deadline deadline) {
  StepNote* const notes = static_cast<StepNote*>(steps_->data());
  GS_RETURN_IF_ERROR(gpu_->RunOnHost(
      [note = StepNote(step), own = notes + rank_] { std::memcpy(own, &note, sizeof(note)); },
      stream));
  GS_RETURN_IF_ERROR(
      communicator.AllGather("the step's options", notes, sizeof(StepNote), stream, deadline));
  return gpu_->RunOnHost(
      [notes, ranks = plan_.world_size(), own = rank_, refuse = std::move(refuse)] {
        const absl::Status same = CheckNotes(notes, ranks, own);
        if (!same.ok()) refuse(same);
      },
      stream);
}

absl::Status NcclOwner::Update(int bucket, const StepOptions& step, GpuStream stream) {
  const NcclBucket& memory = (*buckets_)[bucket];
  for (Part& part : parts_[bucket]) {
    GS_RETURN_IF_ERROR(part.optimizer.Apply(memory.param + part.range.begin,
                                            memory.grad + part.range.begin, step.lr, step.step,
                                            stream));
  }
  return absl::OkStatus();
}

absl::Status NcclOwner::AgreeOnFactor(const StepOptions& step, NcclCommunicator& communicator,
                                      GpuStream stream, Deadline deadline) {
  double* const squares = static_cast<double*>(squares_->data());
  GS_RETURN_IF_ERROR(
      gpu_->SumsOfSquares(static_cast<const SquaresPiece*>(blocks_->data()), num_blocks_,
                          squares + static_cast<size_t>(rank_) * squares_per_rank_, stream));
  GS_RETURN_IF_ERROR(communicator.AllGather("the sums of squares", squares,
                                            squares_per_rank_ * sizeof(double), stream, deadline));
  return gpu_->RunOnHost(
      [squares, places = &places_, max_norm = step.max_norm, factor = factor_->floats()] {
        double sum = 0;
        for (const size_t place : *places) sum += squares[place];
        // As ClipScale() (plan/clip_scale.h).
        const double scale = max_norm / (std::sqrt(sum) + 1e-6);
        *factor = static_cast<float>(scale < 1 ? scale : 1);
      },
      stream);
}

absl::Status NcclOwner::Clip(int bucket, GpuStream stream) {
  float* const grad = (*buckets_)[bucket].grad;
  for (const Part& part : parts_[bucket]) {
    GS_RETURN_IF_ERROR(
        gpu_->ScaleBy(grad + part.range.begin, Floats(part.range), factor_->floats(), stream));
  }
  return absl::OkStatus();
}

absl::Status NcclOwner::CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream) {
  GS_RETURN_IF_ERROR(gpu_->Copy(to, from, bytes, stream));
  GS_RETURN_IF_ERROR(gpu_->Record(copied_.get(), stream));
  return gpu_->Synchronize(copied_.get());
}

absl::StatusOr<std::shared_ptr<GpuMemory>> NcclOwner::NewStage() const {
  int64_t largest = 0;
  for (const NcclBucket& bucket : buckets_->all()) largest = std::max(largest, bucket.numel);
  return GpuMemory::Pinned(gpu_, static_cast<size_t>(largest) * sizeof(float));
}

absl::StatusOr<std::string> NcclOwner::ExportBucket(int bucket, GpuStream stream) {
  std::string bytes;
  for (const Part& part : parts_[bucket]) {
    const DeviceRangeOptimizer& optimizer = part.optimizer;
    bytes.push_back(optimizer.has_state() ? kHasState : kNoState);
    if (!optimizer.has_state()) continue;
    const size_t slot_bytes = Floats(part.range) * sizeof(float);
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      GS_RETURN_IF_ERROR(
          CopyAndWait(stage_->data(), optimizer.slot(static_cast<int>(slot)), slot_bytes, stream));
      bytes.append(static_cast<const char*>(stage_->data()), slot_bytes);
    }
  }
  return bytes;
}

// What ExportBucket() wrote on `rank`.
absl::Status NcclOwner::Collect(int bucket, int rank, absl::string_view exported,
                                OptimizerState* state) const {
  const std::vector<std::string> names = SlotNames(plan_.optimizer());
  const absl::Status wrong_length = absl::DataLossError(absl::StrCat(
      "optimizer state of bucket ", bucket, " from rank ", rank,
      ": expected that of all its elements and no more, found ", exported.size(), " bytes"));
  for (const NcclShare& run : runs_[bucket]) {
    if (run.owner != rank) continue;
    if (exported.empty()) return wrong_length;
    const bool has_state = exported[0] == kHasState;
    exported.remove_prefix(1);
    if (!has_state) continue;
    std::vector<float> values(Floats(run.range));
    const size_t slot_bytes = values.size() * sizeof(float);
    for (const std::string& name : names) {
      if (exported.size() < slot_bytes) return wrong_length;
      std::memcpy(values.data(), exported.data(), slot_bytes);
      exported.remove_prefix(slot_bytes);
      ScatterSlot(plan_, bucket, run.range, name, values.data(), state);
    }
  }
  return exported.empty() ? absl::OkStatus() : wrong_length;
}

absl::StatusOr<OptimizerState> NcclOwner::Export(int64_t steps, GpuStream stream,
                                                 SideChannel& side_channel, Deadline deadline) {
  GS_ASSIGN_OR_RETURN(stage_, NewStage());
  OptimizerState state;
  state.step = steps;
  for (int b = 0; b < static_cast<int>(parts_.size()); ++b) {
    GS_ASSIGN_OR_RETURN(const std::string own, ExportBucket(b, stream));
    GS_ASSIGN_OR_RETURN(const std::vector<std::string> parts,
                        side_channel.AllGather(own, deadline));
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      GS_RETURN_IF_ERROR(Collect(b, static_cast<int>(rank), parts[rank], &state));
    }
  }
  stage_ = nullptr;
  return state;
}

absl::Status NcclOwner::Import(const OptimizerState& state, GpuStream stream) {
  GS_ASSIGN_OR_RETURN(stage_, NewStage());
  for (int b = 0; b < static_cast<int>(parts_.size()); ++b) {
    for (Part& part : parts_[b]) {
      DeviceRangeOptimizer& optimizer = part.optimizer;
      optimizer.ClearState();
      if (!HasState(plan_, b, part.range, state)) continue;
      GS_RETURN_IF_ERROR(optimizer.EnsureState());
      const size_t bytes = Floats(part.range) * sizeof(float);
      for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
        GatherSlot(plan_, b, part.range, optimizer.slot_names()[slot], state, stage_->floats());
        GS_RETURN_IF_ERROR(
            CopyAndWait(optimizer.slot(static_cast<int>(slot)), stage_->data(), bytes, stream));
      }
    }
  }
  stage_ = nullptr;
  return absl::OkStatus();
}

}  // namespace gradsync
