#include "benchmarks/profiles/step_recorder.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/profiles/lone_slice_link.h"
#include "benchmarks/records/aggregate.h"
#include "benchmarks/records/machine_info.h"
#include "core/base/status_macros.h"
#include "core/group/mesh.h"
#include "core/group/side_channel.h"
#include "core/pipeline/slice_link.h"
#include "core/plan/kinds.h"
#include "core/sync/local_sync.h"
#include "worker/models/model_table.h"
#include "worker/train/compute_options.h"

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
double Rounded(double us) { return static_cast<double>(static_cast<int64_t>(us * 10 + 0.5)) / 10; }

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

}  // namespace gradsync
