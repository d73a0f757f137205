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

constexpr char kNoState = 0;
constexpr char kHasState = 1;

constexpr int64_t kSquaresBlock = 65'536;  // elements

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
                     const Plan& plan, int rank)
    : gpu_(std::move(gpu)), buckets_(std::move(buckets)), plan_(plan), rank_(rank) {
  for (int b = 0; b < static_cast<int>(plan_.buckets().size()); ++b) {
    const ElementRange range = (*buckets_)[b].range(rank_);
    optimizers_.emplace_back(gpu_, plan_.optimizer(), range, plan_.GroupRanges(b, range));
  }
}

absl::StatusOr<std::unique_ptr<NcclOwner>> NcclOwner::Create(
    std::shared_ptr<GpuApi> gpu, std::shared_ptr<const NcclBuckets> buckets, const Plan& plan,
    int rank) {
  std::unique_ptr<NcclOwner> owner(new NcclOwner(gpu, std::move(buckets), plan, rank));
  const size_t ranks = static_cast<size_t>(plan.world_size());
  GS_ASSIGN_OR_RETURN(owner->copied_, ScopedEvent::Create(gpu));
  GS_ASSIGN_OR_RETURN(owner->steps_, GpuMemory::Pinned(gpu, ranks * sizeof(StepNote)));
  GS_RETURN_IF_ERROR(owner->CutIntoBlocks());
  GS_ASSIGN_OR_RETURN(owner->factor_, GpuMemory::Pinned(gpu, sizeof(float)));
  return owner;
}

// The order of addition within a block leaves a GPU little to do side by side, so there are many.
absl::Status NcclOwner::CutIntoBlocks() {
  std::vector<SquaresPiece> blocks;
  for (int b = 0; b < static_cast<int>(plan_.buckets().size()); ++b) {
    const int64_t own = (*buckets_)[b].range(rank_).size();
    for (int64_t begin = 0; begin < (*buckets_)[b].piece; begin += kSquaresBlock) {
      blocks.push_back(
          {grad(b) + begin, std::min(std::max<int64_t>(own - begin, 0), kSquaresBlock)});
    }
  }
  num_blocks_ = blocks.size();
  GS_ASSIGN_OR_RETURN(blocks_, GpuMemory::Pinned(gpu_, num_blocks_ * sizeof(SquaresPiece)));
  std::copy(blocks.begin(), blocks.end(), static_cast<SquaresPiece*>(blocks_->data()));
  GS_ASSIGN_OR_RETURN(squares_, GpuMemory::Pinned(gpu_, static_cast<size_t>(plan_.world_size()) *
                                                            num_blocks_ * sizeof(double)));
  return absl::OkStatus();
}

float* NcclOwner::grad(int bucket) const {
  return (*buckets_)[bucket].grad + (*buckets_)[bucket].range(rank_).begin;
}

// The host may be steps ahead of the stream, so it writes its note when the stream comes to it.
absl::Status NcclOwner::CompareSteps(const StepOptions& step, NcclCommunicator& communicator,
                                     std::function<void(absl::Status)> refuse, GpuStream stream,
                                     absl::Time deadline) {
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
  return optimizers_[bucket].Apply(memory.param + memory.range(rank_).begin, grad(bucket), step.lr,
                                   step.step, stream);
}

absl::Status NcclOwner::AgreeOnFactor(const StepOptions& step, NcclCommunicator& communicator,
                                      GpuStream stream, absl::Time deadline) {
  double* const squares = static_cast<double*>(squares_->data());
  GS_RETURN_IF_ERROR(
      gpu_->SumsOfSquares(static_cast<const SquaresPiece*>(blocks_->data()), num_blocks_,
                          squares + static_cast<size_t>(rank_) * num_blocks_, stream));
  GS_RETURN_IF_ERROR(communicator.AllGather("the sums of squares", squares,
                                            num_blocks_ * sizeof(double), stream, deadline));
  return gpu_->RunOnHost(
      [squares, blocks = num_blocks_, ranks = static_cast<size_t>(plan_.world_size()),
       max_norm = step.max_norm, factor = factor_->floats()] {
        double sum = 0;
        for (size_t block = 0; block < blocks; ++block) {
          for (size_t rank = 0; rank < ranks; ++rank) sum += squares[rank * blocks + block];
        }
        // As ClipScale() (plan/clip_scale.h).
        const double scale = max_norm / (std::sqrt(sum) + 1e-6);
        *factor = static_cast<float>(scale < 1 ? scale : 1);
      },
      stream);
}

absl::Status NcclOwner::Clip(int bucket, GpuStream stream) {
  const size_t n = static_cast<size_t>((*buckets_)[bucket].range(rank_).size());
  if (n == 0) return absl::OkStatus();
  return gpu_->ScaleBy(grad(bucket), n, factor_->floats(), stream);
}

absl::Status NcclOwner::CopyAndWait(void* to, const void* from, size_t bytes, GpuStream stream) {
  GS_RETURN_IF_ERROR(gpu_->Copy(to, from, bytes, stream));
  GS_RETURN_IF_ERROR(gpu_->Record(copied_.get(), stream));
  return gpu_->Synchronize(copied_.get());
}

absl::StatusOr<std::string> NcclOwner::ExportBucket(int bucket, GpuStream stream) {
  const DeviceRangeOptimizer& optimizer = optimizers_[bucket];
  if (!optimizer.has_state()) return std::string(1, kNoState);
  std::string bytes(1, kHasState);
  const size_t slot_bytes = static_cast<size_t>(optimizer.size()) * sizeof(float);
  for (size_t slot = 0; slot < optimizer.slot_names().size() && slot_bytes > 0; ++slot) {
    GS_RETURN_IF_ERROR(
        CopyAndWait(stage_->data(), optimizer.slot(static_cast<int>(slot)), slot_bytes, stream));
    bytes.append(static_cast<const char*>(stage_->data()), slot_bytes);
  }
  return bytes;
}

absl::Status NcclOwner::Collect(int bucket, int rank, absl::string_view exported,
                                OptimizerState* state) const {
  const ElementRange range = (*buckets_)[bucket].range(rank);
  const std::vector<std::string> names = SlotNames(plan_.optimizer());
  const size_t slot_bytes = static_cast<size_t>(range.size()) * sizeof(float);
  const bool has_state = !exported.empty() && exported[0] == kHasState;
  const size_t expected = 1 + (has_state ? names.size() * slot_bytes : 0);
  if (exported.size() != expected) {
    return absl::DataLossError(absl::StrCat("optimizer state of bucket ", bucket, " from rank ",
                                            rank, ": expected ", expected, " bytes, found ",
                                            exported.size()));
  }
  if (!has_state) return absl::OkStatus();
  std::vector<float> values(range.size());
  for (size_t slot = 0; slot < names.size() && slot_bytes > 0; ++slot) {
    std::memcpy(values.data(), exported.data() + 1 + slot * slot_bytes, slot_bytes);
    ScatterSlot(plan_, bucket, range, names[slot], values.data(), state);
  }
  return absl::OkStatus();
}

absl::StatusOr<OptimizerState> NcclOwner::Export(int64_t steps, GpuStream stream,
                                                 SideChannel& side_channel, absl::Time deadline) {
  int64_t largest = 0;
  for (const NcclBucket& bucket : buckets_->all()) largest = std::max(largest, bucket.piece);
  GS_ASSIGN_OR_RETURN(stage_,
                      GpuMemory::Pinned(gpu_, static_cast<size_t>(largest) * sizeof(float)));
  OptimizerState state;
  state.step = steps;
  for (int b = 0; b < static_cast<int>(optimizers_.size()); ++b) {
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
  for (int b = 0; b < static_cast<int>(optimizers_.size()); ++b) {
    DeviceRangeOptimizer& optimizer = optimizers_[b];
    const ElementRange range = (*buckets_)[b].range(rank_);
    optimizer.ClearState();
    if (!HasState(plan_, b, range, state)) continue;
    GS_RETURN_IF_ERROR(optimizer.EnsureState());
    const size_t bytes = static_cast<size_t>(range.size()) * sizeof(float);
    GS_ASSIGN_OR_RETURN(stage_, GpuMemory::Pinned(gpu_, bytes));
    for (size_t slot = 0; slot < optimizer.slot_names().size(); ++slot) {
      GatherSlot(plan_, b, range, optimizer.slot_names()[slot], state, stage_->floats());
      GS_RETURN_IF_ERROR(
          CopyAndWait(optimizer.slot(static_cast<int>(slot)), stage_->data(), bytes, stream));
    }
  }
  stage_ = nullptr;
  return absl::OkStatus();
}

}  // namespace gradsync
