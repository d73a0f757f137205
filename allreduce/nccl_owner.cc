#include "allreduce/nccl_owner.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"
#include "core/shared_memory/window_layout.h"

namespace gradsync {
namespace {

// The order of addition within a block leaves a GPU little to do side by side, so there are many. A
// chunk is one block, as in other backends.
constexpr int64_t kSquaresBlock = 64 << 10;

using StepNote = std::array<uint64_t, 4>;  // core/shared_memory/window_layout.h

// What is updated need not be parted where it is measured.
std::vector<DeviceOwner::Bucket> OwnedBuckets(const NcclBuckets& buckets, int ranks,
                                              const NcclShares& shares) {
  const NcclShares runs = Joined(shares);
  std::vector<DeviceOwner::Bucket> owned;
  for (size_t b = 0; b < buckets.all().size(); ++b) {
    DeviceOwner::Bucket& bucket = owned.emplace_back();
    bucket.grad = buckets.all()[b].grad;
    bucket.param = buckets.all()[b].param;
    bucket.ranges.resize(static_cast<size_t>(ranks));
    for (const NcclShare& run : runs[b]) bucket.ranges[run.owner].push_back(run.range);
  }
  return owned;
}

absl::Status CheckNotes(const StepNote* notes, int ranks, int own) {
  const StepOptions expected = StepOf(notes[own]);
  for (int rank = 0; rank < ranks; ++rank) {
    const StepOptions found = StepOf(notes[rank]);
    if (found == expected) continue;
    return absl::FailedPreconditionError(absl::StrCat("expected ", DescribeStep(expected),
                                                      " as at rank ", own, ", found ",
                                                      DescribeStep(found), " at rank ", rank));
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
      shares_(shares) {}

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
  GS_ASSIGN_OR_RETURN(owner->state_, DeviceOwner::Create(gpu, plan, rank,
                                                         OwnedBuckets(*owner->buckets_,
                                                                      plan.world_size(), shares)));
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
  GS_RETURN_IF_ERROR(
      gpu_->RunOnHost([note = NoteOf(step), own = notes + rank_] { *own = note; }, stream));
  GS_RETURN_IF_ERROR(
      communicator.AllGather("the step's options", notes, sizeof(StepNote), stream, deadline));
  return gpu_->RunOnHost(
      [notes, ranks = plan_.world_size(), own = rank_, refuse = std::move(refuse)] {
        const absl::Status same = CheckNotes(notes, ranks, own);
        if (!same.ok()) refuse(same);
      },
      stream);
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
        // As ClipScale() (core/plan/plan.h).
        const double scale = max_norm / (std::sqrt(sum) + 1e-6);
        *factor = static_cast<float>(scale < 1 ? scale : 1);
      },
      stream);
}

}  // namespace gradsync
