#include "gradsync/ddp/worker_optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ATen/Parallel.h"
#include "core/base/kernels.h"
#include "core/base/status_macros.h"
#include "core/optim/optimizer_state.h"
#include "core/optim/range_optimizer.h"

namespace gradsync {
namespace {

// 1 MiB of parameters: large against the cost of handing a piece to a thread, small against a
// bucket.
constexpr int64_t kPieceElements = int64_t{1} << 18;

class HostWorkerOptimizer : public WorkerOptimizer {
 public:
  HostWorkerOptimizer(const Plan& plan, std::vector<BucketMemory> memory);
  absl::StatusOr<double> GradientNorm() override;
  absl::Status ClipGradients(double max_norm) override;
  double grad_norm() const override { return grad_norm_; }
  absl::Status Update(const StepOptions& step, int bucket) override;
  absl::StatusOr<OptimizerState> Export(int64_t step) const override;
  absl::Status Import(const OptimizerState& state) override;

 private:
  // A part of a bucket that one thread updates.
  struct Piece {
    ElementRange range;
    RangeOptimizer optimizer;
  };

  const Plan plan_;
  const std::vector<BucketMemory> memory_;
  const std::vector<std::string> slot_names_;
  std::vector<std::vector<Piece>> pieces_;  // by bucket
  double grad_norm_ = 0;
};

HostWorkerOptimizer::HostWorkerOptimizer(const Plan& plan, std::vector<BucketMemory> memory)
    : plan_(plan), memory_(std::move(memory)), slot_names_(SlotNames(plan.optimizer())) {
  for (size_t b = 0; b < plan_.buckets().size(); ++b) {
    std::vector<Piece>& pieces = pieces_.emplace_back();
    const int64_t numel = plan_.buckets()[b].numel;
    for (int64_t begin = 0; begin < numel; begin += kPieceElements) {
      const ElementRange range = {begin, std::min(begin + kPieceElements, numel)};
      pieces.push_back({range, RangeOptimizer(plan_.optimizer(), range,
                                              plan_.GroupRanges(static_cast<int>(b), range))});
    }
  }
}

absl::StatusOr<double> HostWorkerOptimizer::GradientNorm() {
  double sum = 0;
  for (size_t b = 0; b < memory_.size(); ++b) {
    const StripeLayout& layout = plan_.buckets()[b].layout;
    const float* grad = memory_[b].grad;
    std::vector<double> squares(layout.slots());
    at::parallel_for(0, layout.slots(), /*grain_size=*/4, [&](int64_t begin, int64_t end) {
      for (int64_t slot = begin; slot < end; ++slot) {
        const ElementRange range = layout.range(static_cast<int>(slot));
        squares[slot] = SumOfSquares(grad + range.begin, range.size());
      }
    });
    for (double square : squares) sum += square;
  }
  grad_norm_ = std::sqrt(sum);
  return grad_norm_;
}

absl::Status HostWorkerOptimizer::ClipGradients(double max_norm) {
  GS_ASSIGN_OR_RETURN(const double norm, GradientNorm());
  const double scale = max_norm / (norm + 1e-6);
  if (scale < 1) {
    for (const BucketMemory& bucket : memory_) {
      at::parallel_for(0, bucket.numel, kPieceElements, [&](int64_t begin, int64_t end) {
        Scale(bucket.grad + begin, end - begin, static_cast<float>(scale));
      });
    }
  }
  return absl::OkStatus();
}

absl::Status HostWorkerOptimizer::Update(const StepOptions& step, int bucket) {
  std::vector<Piece>& pieces = pieces_[bucket];
  const BucketMemory& memory = memory_[bucket];
  at::parallel_for(0, pieces.size(), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t offset = pieces[i].range.begin;
      pieces[i].optimizer.Apply(memory.param + offset, memory.grad + offset, step.lr, step.step);
    }
  });
  return absl::OkStatus();
}

absl::StatusOr<OptimizerState> HostWorkerOptimizer::Export(int64_t step) const {
  OptimizerState state;
  state.step = step;
  for (size_t b = 0; b < pieces_.size(); ++b) {
    for (const Piece& piece : pieces_[b]) {
      if (!piece.optimizer.has_state()) continue;
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        ScatterSlot(plan_, static_cast<int>(b), piece.range, slot_names_[s],
                    piece.optimizer.slot(static_cast<int>(s)).data(), &state);
      }
    }
  }
  return state;
}

absl::Status HostWorkerOptimizer::Import(const OptimizerState& state) {
  GS_RETURN_IF_ERROR(CheckState(plan_, state));
  for (size_t b = 0; b < pieces_.size(); ++b) {
    for (Piece& piece : pieces_[b]) {
      piece.optimizer.ClearState();
      if (state.slots.empty()) continue;
      for (size_t s = 0; s < slot_names_.size(); ++s) {
        GatherSlot(plan_, static_cast<int>(b), piece.range, slot_names_[s], state,
                   piece.optimizer.mutable_slot(static_cast<int>(s)).data());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<WorkerOptimizer> CreateWorkerOptimizer(const Plan& plan,
                                                       std::vector<BucketMemory> memory) {
  return std::make_unique<HostWorkerOptimizer>(plan, std::move(memory));
}

}  // namespace gradsync
