#include "benchmarks/profiles/block_recorder.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ATen/ops/ones_like.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/profiles/lone_slice_link.h"
#include "benchmarks/records/aggregate.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/pipeline/stage_step.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/data/dataset.h"
#include "worker/data/token_dataset.h"
#include "worker/models/create_model.h"
#include "worker/models/model.h"
#include "worker/models/sliceable_model.h"
#include "worker/train/count_tensor_memory.h"
#include "worker/train/forward.h"
#include "worker/train/job_data.h"
#include "worker/train/slice_channel.h"
#include "worker/train/tensor_memory.h"

namespace gradsync {
namespace {

at::Tensor ExampleOf(const JobData& data, int64_t samples) {
  if (data.tokens != nullptr) return at::zeros({samples, data.tokens->context()}, at::kLong);
  const ImageShape shape = data.images->shape();
  return at::randn({samples, shape.channels, shape.height, shape.width});
}

// The peak of nothing is what is there.
int64_t BytesNow(TensorMemory& memory) {
  memory.StartPeak();
  return memory.PeakBytes();
}

double Microseconds(MonotonicTime from) {
  return absl::ToDoubleMicroseconds(MonotonicTime::Now() - from);
}

double Rounded(double value) {
  return static_cast<double>(static_cast<int64_t>(value * 10 + 0.5)) / 10;
}

struct BlockRuns {
  std::vector<double> forward_us;
  std::vector<double> backward_us;
  int64_t output_bytes = 0;
  int64_t kept_bytes = 0;
};

// Each block's backward follows its forward, so its input is what stays of the blocks before.
void RunBlocks(const ComputeOptions& compute, Model& model, at::Tensor x, TensorMemory& memory,
               std::vector<BlockRuns>* blocks) {
  for (size_t b = 0; b < blocks->size(); ++b) {
    BlockRuns& block = (*blocks)[b];
    std::unique_ptr<StageInlet> inlet;
    if (b > 0) inlet = std::make_unique<StageInlet>(x);
    const int64_t before = BytesNow(memory);
    const MonotonicTime start = MonotonicTime::Now();
    at::Tensor y = ForwardBlocks(compute, model, static_cast<int>(b), static_cast<int>(b) + 1,
                                 b > 0 ? inlet->input() : x);
    block.forward_us.push_back(Microseconds(start));
    block.kept_bytes = std::max<int64_t>(0, BytesNow(memory) - before);
    block.output_bytes = static_cast<int64_t>(y.nbytes());
    const at::Tensor gradient = at::ones_like(y);
    const MonotonicTime turn = MonotonicTime::Now();
    if (y.requires_grad()) torch::autograd::backward({y}, {gradient});
    block.backward_us.push_back(Microseconds(turn));
    x = y.detach();
  }
}

}  // namespace

absl::Status RecordBlocks(const TrainerOptions& options, proto::StepProfile* profile) {
  const int64_t runs = options.steps - options.warmup_steps;
  if (runs < 1) {
    return absl::InvalidArgumentError(absl::StrCat("runs of blocks: expected at least 1 after ",
                                                   options.warmup_steps, " others, found ",
                                                   options.steps, " in all"));
  }
  GS_ASSIGN_OR_RETURN(const JobData data, OpenJobData(options.model, options.data, Split::kTrain));
  GS_ASSIGN_OR_RETURN(const ModelOptions fitting, FitModel(options.model, data));
  GS_ASSIGN_OR_RETURN(const std::shared_ptr<Model> model, CreateModel(fitting));
  SetMemoryFormat(options.compute, *model);
  const int slices = options.pipeline.mesh.size(MeshDimension::kTensor);
  const std::unique_ptr<SliceLink> lone = NewLoneSliceLink(slices);
  SliceChannel channel(lone.get(), options.timeout, /*activity=*/nullptr);
  if (slices > 1) {
    GS_RETURN_IF_ERROR(SliceModel(*model, {&channel, options.pipeline.split_sequence}));
  }
  std::vector<BlockRuns> blocks(model->blocks().size());
  const std::unique_ptr<TensorMemory> memory = CountTensorMemory(/*gpu=*/nullptr);
  try {
    for (int64_t run = 0; run < options.steps; ++run) {
      if (run == options.warmup_steps) {
        for (BlockRuns& block : blocks) {
          block.forward_us.clear();
          block.backward_us.clear();
        }
      }
      model->BeginStep(static_cast<uint64_t>(run));
      RunBlocks(options.compute, *model, ExampleOf(data, options.batch_size), *memory, &blocks);
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("recording blocks: LibTorch: ", e.what()));
  }
  const auto samples = static_cast<double>(options.batch_size);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const ModelBlock& block = model->blocks()[b];
    proto::ProfiledBlock& added = *profile->add_blocks();
    added.set_name(block.name);
    added.set_recomputes(block.recompute);
    added.set_forward_us(Rounded(Percentile(blocks[b].forward_us, 0.5)));
    added.set_backward_us(Rounded(Percentile(blocks[b].backward_us, 0.5)));
    added.set_output_bytes(Rounded(static_cast<double>(blocks[b].output_bytes) / samples));
    added.set_kept_bytes(Rounded(static_cast<double>(blocks[b].kept_bytes) / samples));
    for (const std::string& name : model->ParametersOf(block)) added.add_tensors(name);
  }
  return absl::OkStatus();
}

}  // namespace gradsync
