#include "worker/train/data_parallel_step.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "ATen/TensorOperators.h"
#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/flat_parameters.h"
#include "torch/csrc/autograd/autograd.h"
#include "worker/models/layers.h"
#include "worker/models/loss.h"

namespace gradsync {
namespace {

// A loss and a number of hits.
constexpr int64_t kFigureBytes = 2 * sizeof(float);

int64_t Bytes(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); }

absl::Status Thrown(absl::string_view what, const std::exception& e) {
  return absl::InternalError(absl::StrCat(what, ": LibTorch: ", FirstLine(e.what())));
}

}  // namespace

DataParallelStep::DataParallelStep(const DataParallelOptions& options, std::shared_ptr<Model> model)
    : options_(options), threads_(options.replicas, options.threads) {
  replicas_.resize(options.replicas);
  replicas_[0].model = std::move(model);
}

// The model may live on, and have statistics to itself.
DataParallelStep::~DataParallelStep() {
  if (replicas_[0].model != nullptr) ShareStatistics({replicas_[0].model.get()}, nullptr);
}

absl::StatusOr<std::unique_ptr<DataParallelStep>> DataParallelStep::Create(
    const DataParallelOptions& options, std::shared_ptr<Model> model) {
  auto step = absl::WrapUnique(new DataParallelStep(options, std::move(model)));
  GS_RETURN_IF_ERROR(step->MakeReplicas());
  return step;
}

absl::Status DataParallelStep::MakeReplicas() {
  std::vector<torch::nn::Module*> modules;
  for (Replica& replica : replicas_) {
    if (replica.model == nullptr) {
      GS_ASSIGN_OR_RETURN(replica.model, CreateModel(options_.model));
      try {
        SetMemoryFormat(options_.compute, *replica.model);
      } catch (const std::exception& e) {
        return Thrown("a replica of the model", e);
      }
    }
    modules.push_back(replica.model.get());
    for (const NamedParameter& parameter : TrainableParametersOf(*replica.model)) {
      replica.parameters.push_back(parameter.tensor);
    }
  }
  ShareStatistics(modules, &turns_);
  return absl::OkStatus();
}

absl::Status DataParallelStep::Run(DdpEngine& ddp, const Work& work, FigureSum* sum,
                                   ReplicaTimes* times, ReplicaPoints* points) {
  const int active = static_cast<int>(PartsOf(work.batch));
  if (active < 1 || active > threads_.count()) {
    return absl::InvalidArgumentError(absl::StrCat("step ", work.step.step, ": expected 1 to ",
                                                   threads_.count(), " parts of ", options_.part,
                                                   " samples, found ", active));
  }
  const bool last = work.first_part + active == work.parts;
  try {
    if (work.first_part == 0) times->tx_bytes += Replicate(active);
    points->replicated = MonotonicTime::Now();
    times->tx_bytes += Scatter(work.batch, active);
    points->scattered = MonotonicTime::Now();
    // Where there is one part, its own backward is the last, and launches.
    const bool alone = last && active == 1;
    if (alone) GS_RETURN_IF_ERROR(ddp.BeginStep(work.step));
    GS_RETURN_IF_ERROR(Apply(ddp, work, active, alone));
    points->applied = MonotonicTime::Now();
    for (int r = 0; r < active; ++r) sum->Add(replicas_[r].figures);
    times->rx_bytes += (active - 1) * kFigureBytes;
    points->gathered = MonotonicTime::Now();
    if (last && !alone) GS_RETURN_IF_ERROR(ddp.BeginStep(work.step));
    times->rx_bytes += Reduce(ddp, active, last);
    points->reduced = MonotonicTime::Now();
  } catch (const std::exception& e) {
    return Thrown(absl::StrCat("step ", work.step.step), e);
  }
  points->forward_done = replicas_[0].forward_done;
  times->replicate += points->replicated - points->have_data;
  times->scatter += points->scattered - points->replicated;
  times->apply += points->applied - points->scattered;
  times->gather += points->gathered - points->applied;
  times->reduce += points->reduced - points->gathered;
  times->busy_first += replicas_[0].busy;
  for (int r = 1; r < active; ++r) times->busy_others += replicas_[r].busy;
  return absl::OkStatus();
}

int64_t DataParallelStep::Replicate(int active) {
  const c10::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (int r = 1; r < active; ++r) {
    for (size_t i = 0; i < replicas_[r].parameters.size(); ++i) {
      replicas_[r].parameters[i].copy_(replicas_[0].parameters[i]);
      bytes += Bytes(replicas_[0].parameters[i]);
    }
  }
  return bytes;
}

// Replica 0 has the batch.
int64_t DataParallelStep::Scatter(const Batch& batch, int active) {
  const int64_t samples = batch.labels.size(0);
  int64_t bytes = 0;
  for (int r = 0; r < active; ++r) {
    const int64_t begin = r * options_.part;
    const int64_t size = std::min(options_.part, samples - begin);
    Batch& part = replicas_[r].part;
    part.images = batch.images.narrow(0, begin, size);
    part.labels = batch.labels.narrow(0, begin, size);
    if (r == 0) continue;
    part.images = part.images.clone();
    part.labels = part.labels.clone();
    bytes += Bytes(part.images) + Bytes(part.labels);
  }
  return bytes;
}

absl::Status DataParallelStep::Compute(const Work& work, Replica* replica, int number) {
  const MonotonicTime begin = MonotonicTime::Now();
  Model& model = *replica->model;
  model.BeginStep(work.seed(work.first_part + number));
  const at::Tensor logits = Forward(options_.compute, model, replica->part.images);
  const at::Tensor loss = CrossEntropy(logits, replica->part.labels, work.label_smoothing);
  replica->figures = {loss.detach(),
                      CorrectPredictions(logits, replica->part.labels).to(at::kFloat)};
  CountActivity(options_.activity);
  replica->forward_done = MonotonicTime::Now();
  (work.parts > 1 ? loss / static_cast<double>(work.parts) : loss).backward();
  CountActivity(options_.activity);
  replica->busy = MonotonicTime::Now() - begin;
  return absl::OkStatus();
}

// Replica 0's gradients go to their buckets, the others' stay with them.
absl::Status DataParallelStep::Apply(DdpEngine& ddp, const Work& work, int active, bool launches) {
  for (int r = 1; r < active; ++r) {
    for (const at::Tensor& parameter : replicas_[r].parameters) {
      parameter.mutable_grad() = at::Tensor();
    }
  }
  turns_.Begin();
  const auto compute = [&] {
    return threads_.Run(
        active, [&](int r) { return Compute(work, &replicas_[r], r); }, [&] { turns_.Abandon(); });
  };
  absl::Status computed;
  if (launches) {
    computed = compute();
  } else {
    const auto no_sync = ddp.NoSync();
    computed = compute();
  }
  turns_.End();
  return computed;
}

// As if the parts before the last had been micro-batches: autograd hands the gradients of each
// replica to replica 0's parameters, where they meet the hooks that add them up.
int64_t DataParallelStep::Reduce(DdpEngine& ddp, int active, bool last) {
  int64_t bytes = 0;
  const auto add = [&](const BucketPlan& bucket, int replica) {
    std::vector<at::Tensor> parameters, gradients;
    for (const PlacedTensor& placed : bucket.tensors) {
      const at::Tensor& gradient = replicas_[replica].parameters[placed.tensor].grad();
      if (!gradient.defined()) continue;
      parameters.push_back(replicas_[0].parameters[placed.tensor]);
      gradients.push_back(gradient);
      bytes += Bytes(gradient);
    }
    if (!parameters.empty()) torch::autograd::backward(parameters, gradients);
  };
  for (const BucketPlan& bucket : ddp.plan().buckets()) {
    {
      const auto no_sync = ddp.NoSync();
      const int adding = last ? active - 1 : active;
      for (int r = 1; r < adding; ++r) add(bucket, r);
    }
    if (last && active > 1) add(bucket, active - 1);
  }
  return bytes;
}

}  // namespace gradsync
