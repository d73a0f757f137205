#include "benchmarks/profiles/step_recorder.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/ones_like.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/machine_info.h"
#include "core/base/monotonic_time.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/group/side_channel.h"
#include "core/plan/kinds.h"
#include "core/sync/local_sync.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/data/dataset.h"
#include "worker/data/tokens.h"
#include "worker/models/create_model.h"
#include "worker/models/model.h"
#include "worker/models/model_options.h"
#include "worker/models/slices.h"
#include "worker/pipeline/slice_link.h"
#include "worker/pipeline/stage_step.h"
#include "worker/train/compute_options.h"
#include "worker/train/count_tensor_memory.h"
#include "worker/train/forward.h"
#include "worker/train/job_inputs.h"
#include "worker/train/slice_channel.h"
#include "worker/train/tensor_memory.h"

namespace gradsync {
namespace {

// The median over steps of what `part` says of one.
double MedianUs(const std::vector<StepReport>& steps,
                const std::function<absl::Duration(const StepReport&)>& part) {
  std::vector<double> values;
  for (const StepReport& step : steps) values.push_back(absl::ToDoubleMicroseconds(part(step)));
  return Percentile(std::move(values), 0.5);
}

// A tenth of a microsecond is enough, and makes a file that people can read.
double Rounded(double value) {
  return static_cast<double>(static_cast<int64_t>(value * 10 + 0.5)) / 10;
}

std::string Note(const TrainerOptions& options, const Plan& plan, size_t steps) {
  const ComputeOptions& compute = options.compute;
  int64_t parameters = 0;
  for (const TensorSpec& tensor : plan.tensors()) parameters += tensor.numel();
  return absl::StrCat(parameters, " parameters, data ", options.data, ", stem ", options.model.stem,
                      "; medians of ", steps, " steps after ", options.warmup_steps,
                      " others, one worker alone on the machine",
                      options.pipeline.mesh.has_slices() ? ", which computes one slice" : "",
                      compute.precision == Precision::kFp32
                          ? ""
                          : absl::StrCat(", ", PrecisionName(compute.precision)),
                      compute.channels_last ? ", channels-last" : "");
}

class LoneSliceLink : public SliceLink {
 public:
  explicit LoneSliceLink(int slices) : slices_(slices) {}

  int slice() const override { return 0; }
  int slices() const override { return slices_; }

  absl::Status Connect(const std::string&, Deadline) override { return absl::OkStatus(); }

  absl::StatusOr<at::Tensor> Sum(const at::Tensor& own, Deadline) override {
    return own.detach().clone();
  }
  absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own, Deadline) override {
    return own.detach().select(0, 0).clone();
  }
  absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own, Deadline) override {
    return std::vector<at::Tensor>(slices_, own.detach());
  }

  absl::Status Finish(Deadline) override { return absl::OkStatus(); }

  int64_t bytes_sent() const override { return 0; }
  int64_t bytes_received() const override { return 0; }

 private:
  const int slices_;
};

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

absl::StatusOr<proto::StepProfile> MedianStep(const Plan& plan,
                                              const std::vector<StepReport>& steps) {
  const size_t count = plan.tensors().size();
  if (steps.empty()) return absl::InvalidArgumentError("expected at least one step, found none");
  for (const StepReport& step : steps) {
    if (step.gradient_ready.size() != count) {
      return absl::InvalidArgumentError(absl::StrCat("step ", step.step, ": expected times of ",
                                                     count, " gradients, found ",
                                                     step.gradient_ready.size()));
    }
  }
  proto::StepProfile profile;
  profile.set_forward_us(
      Rounded(MedianUs(steps, [](const StepReport& s) { return s.times.forward; })));
  const double end =
      MedianUs(steps, [](const StepReport& s) { return s.times.forward + s.times.backward; });
  profile.set_backward_us(Rounded(end - profile.forward_us()));
  profile.set_update_us(
      Rounded(MedianUs(steps, [](const StepReport& s) { return s.times.update; })));

  std::vector<double> ready;
  for (size_t i = 0; i < count; ++i) {
    ready.push_back(MedianUs(steps, [i](const StepReport& s) { return s.gradient_ready[i]; }));
  }
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&ready](int a, int b) { return ready[a] < ready[b]; });
  for (int tensor : order) {
    proto::ProfiledTensor& added = *profile.add_tensors();
    added.set_name(plan.tensors()[tensor].name);
    added.set_numel(static_cast<int32_t>(plan.tensors()[tensor].numel()));
    added.set_ready_us(
        std::min(Rounded(ready[tensor]), profile.forward_us() + profile.backward_us()));
  }
  return profile;
}

absl::StatusOr<proto::StepProfile> RecordStep(
    TrainerOptions options, const std::function<void(const StepReport&)>& on_step) {
  options.synchronised = false;
  options.record_gradients = true;
  const int slices = options.pipeline.mesh.size(MeshDimension::kTensor);
  const std::unique_ptr<SliceLink> lone = NewLoneSliceLink(slices);
  GS_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Create(options, 0, slices));
  const std::unique_ptr<GradientSync> sync = CreateLocalSync(UpdateSite::kWorker);
  SideChannel side_channel(WorkerGroup(), "recorder");
  const SlicePlace place = {lone.get(), &side_channel};
  GS_RETURN_IF_ERROR(trainer->Bind(sync.get(), &side_channel, /*moments=*/nullptr,
                                   /*place=*/nullptr, slices > 1 ? &place : nullptr));
  std::vector<StepReport> steps;
  GS_RETURN_IF_ERROR(trainer
                         ->Run([&](const StepReport& report) {
                           if (report.step > options.warmup_steps) steps.push_back(report);
                           on_step(report);
                         })
                         .status());
  GS_ASSIGN_OR_RETURN(proto::StepProfile profile, MedianStep(trainer->plan(), steps));
  profile.set_model(options.model.name);
  profile.set_origin("measured");
  profile.set_note(Note(options, trainer->plan(), steps.size()));
  *profile.mutable_machine() = DescribeMachine();
  profile.set_batch_size(static_cast<int32_t>(options.batch_size));
  profile.set_threads(options.threads);
  if (slices > 1) profile.set_slices(slices);
  profile.set_split_sequence(slices > 1 && options.pipeline.split_sequence);
  if (FindModel(options.model.name)->family == ModelFamily::kGpt) {
    profile.mutable_gpt()->set_layers(options.model.gpt_layers);
    profile.mutable_gpt()->set_width(options.model.gpt_width);
    profile.mutable_gpt()->set_context(options.model.gpt_context);
  }
  return profile;
}

std::unique_ptr<SliceLink> NewLoneSliceLink(int slices) {
  return std::make_unique<LoneSliceLink>(slices);
}

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
