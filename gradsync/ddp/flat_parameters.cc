#include "gradsync/ddp/flat_parameters.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/tensor_over.h"
#include "torch/nn/module.h"

namespace gradsync {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "Sha256() hashes memory as it is");

absl::Status CheckSupported(const NamedParameter& parameter, c10::Device device) {
  const at::Tensor& t = parameter.tensor;
  if (t.scalar_type() == at::kFloat && t.device() == device && t.layout() == at::kStrided) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "parameter ", parameter.name, ": expected a strided fp32 tensor on ", device.str(),
      ", found ", c10::toString(t.scalar_type()), " on ", t.device().str(),
      "; convert the module first or freeze the parameter (requires_grad)"));
}

// The place of each tensor of the plan, by index into Plan::tensors().
struct Place {
  int bucket = 0;
  int64_t offset = 0;
};

std::vector<Place> PlacesOf(const Plan& plan) {
  std::vector<Place> places(plan.tensors().size());
  for (size_t b = 0; b < plan.buckets().size(); ++b) {
    for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
      places[placed.tensor] = {static_cast<int>(b), placed.offset};
    }
  }
  return places;
}

std::string ShapeText(const TensorSpec& spec) {
  return absl::StrCat(spec.name, " sizes [", absl::StrJoin(spec.sizes, ","), "] strides [",
                      absl::StrJoin(spec.strides, ","), "]");
}

absl::Status CheckAgainstPlan(const std::vector<TensorSpec>& found, const Plan& plan) {
  const std::vector<TensorSpec>& expected = plan.tensors();
  for (size_t i = 0; i < std::min(found.size(), expected.size()); ++i) {
    if (found[i].name != expected[i].name || found[i].sizes != expected[i].sizes ||
        found[i].strides != expected[i].strides) {
      return absl::FailedPreconditionError(
          absl::StrCat("parameter ", i, " of the module: the plan expects ", ShapeText(expected[i]),
                       ", found ", ShapeText(found[i])));
    }
  }
  if (found.size() == expected.size()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the plan expects ", expected.size(),
                                                    " trainable parameters, the module has ",
                                                    found.size()));
}

const char* NameOf(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return c10::toString(at::kFloat);
  }
  return "unknown elements";
}

absl::Status CheckFlat(const FlatBuffer& flat, int64_t numel, c10::Device device, const char* what,
                       size_t bucket) {
  const bool there = flat.memory != nullptr;
  if (there && flat.type == ElementType::kFloat32 && TensorDevice(flat) == device &&
      flat.numel == numel) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      what, " buffer of bucket ", bucket, ": expected ", numel, " contiguous fp32 elements on ",
      device.str(), ", found ",
      there ? absl::StrCat(flat.numel, " of ", NameOf(flat.type), " on ", TensorDevice(flat).str())
            : "none"));
}

c10::Device DeviceOf(const std::vector<GradBucket>& buckets) {
  if (buckets.empty()) return c10::DeviceType::CPU;
  const FlatBuffer& first = buckets[0].param;
  return first.memory == nullptr ? c10::Device(c10::DeviceType::CPU) : TensorDevice(first);
}

absl::Status CheckBuckets(const std::vector<GradBucket>& buckets, const Plan& plan) {
  if (buckets.size() != plan.buckets().size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("expected ", plan.buckets().size(), " buckets, found ", buckets.size()));
  }
  const c10::Device device = DeviceOf(buckets);
  for (size_t b = 0; b < buckets.size(); ++b) {
    const int64_t numel = plan.buckets()[b].numel;
    GS_RETURN_IF_ERROR(CheckFlat(buckets[b].grad, numel, device, "gradient", b));
    GS_RETURN_IF_ERROR(CheckFlat(buckets[b].param, numel, device, "parameter", b));
  }
  return absl::OkStatus();
}

// GradBucket as tensors.
struct FlatTensors {
  at::Tensor grad;
  at::Tensor param;
};

std::vector<FlatTensors> TensorsOver(const std::vector<GradBucket>& buckets) {
  std::vector<FlatTensors> tensors;
  for (const GradBucket& bucket : buckets) {
    tensors.push_back({TensorOver(bucket.grad), TensorOver(bucket.param)});
  }
  return tensors;
}

at::Tensor ViewOf(const at::Tensor& flat, const TensorSpec& spec, int64_t offset) {
  return flat.as_strided(spec.sizes, spec.strides, flat.storage_offset() + offset);
}

bool PointsTo(const at::Tensor& tensor, const void* data, const at::Tensor& like) {
  return tensor.scalar_type() == at::kFloat && tensor.device() == like.device() &&
         tensor.data_ptr() == data && tensor.strides() == like.strides() &&
         tensor.sizes() == like.sizes();
}

}  // namespace

std::vector<NamedParameter> TrainableParametersOf(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  absl::flat_hash_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    parameters.push_back({item.key(), tensor});
  }
  return parameters;
}

absl::StatusOr<std::vector<TensorSpec>> TensorSpecsOf(const torch::nn::Module& module,
                                                      c10::Device device) {
  std::vector<TensorSpec> specs;
  absl::flat_hash_map<const void*, std::string> owner_of_memory;
  for (const NamedParameter& parameter : TrainableParametersOf(module)) {
    GS_RETURN_IF_ERROR(CheckSupported(parameter, device));
    const at::Tensor& t = parameter.tensor;
    const auto [owner, inserted] = owner_of_memory.emplace(t.data_ptr(), parameter.name);
    if (!inserted && t.numel() > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parameters ", owner->second, " and ", parameter.name,
          " share memory: expected memory of their own, or one tensor registered twice"));
    }
    specs.push_back({parameter.name, t.sizes().vec(), t.strides().vec(), 0});
  }
  return specs;
}

absl::StatusOr<FlatParameters> FlatParameters::Bind(const torch::nn::Module& module,
                                                    const Plan& plan,
                                                    const std::vector<GradBucket>& buckets) {
  return Bind(module, plan, buckets, nullptr);
}

absl::StatusOr<FlatParameters> FlatParameters::Bind(
    const torch::nn::Module& module, const Plan& plan, const std::vector<GradBucket>& buckets,
    const std::function<absl::Status(int bucket)>& stored) {
  const std::vector<NamedParameter> named = TrainableParametersOf(module);
  const bool anywhere = stored != nullptr && !named.empty();
  GS_ASSIGN_OR_RETURN(
      const std::vector<TensorSpec> specs,
      TensorSpecsOf(module, anywhere ? named[0].tensor.device() : DeviceOf(buckets)));
  GS_RETURN_IF_ERROR(CheckAgainstPlan(specs, plan));
  GS_RETURN_IF_ERROR(CheckBuckets(buckets, plan));

  const std::vector<Place> places = PlacesOf(plan);
  const std::vector<FlatTensors> tensors = TensorsOver(buckets);
  c10::NoGradGuard no_grad;
  FlatParameters flat;
  for (size_t b = 0; stored != nullptr && b < plan.buckets().size(); ++b) {
    const FlatTensors& bucket = tensors[b];
    bucket.param.zero_();
    for (const PlacedTensor& placed : plan.buckets()[b].tensors) {
      ViewOf(bucket.param, specs[placed.tensor], placed.offset).copy_(named[placed.tensor].tensor);
    }
    GS_RETURN_IF_ERROR(stored(static_cast<int>(b)));
  }
  for (size_t i = 0; i < named.size(); ++i) {
    const FlatTensors& bucket = tensors[places[i].bucket];
    const at::Tensor param_view = ViewOf(bucket.param, specs[i], places[i].offset);
    // Without autograd's mark of a view, which LibTorch's Optimizer::zero_grad() refuses to detach.
    const at::Tensor grad_view = ViewOf(bucket.grad, specs[i], places[i].offset).variable_data();
    const at::Tensor& parameter = named[i].tensor;
    if (stored == nullptr) param_view.copy_(parameter);
    parameter.set_data(param_view);
    parameter.mutable_grad() = grad_view;
    flat.parameters_.push_back({named[i].name, places[i].bucket, parameter, grad_view,
                                static_cast<const void*>(param_view.data_ptr()), parameter});
  }
  return flat;
}

absl::Status FlatParameters::CheckViews() const {
  for (const FlatParameter& p : parameters_) {
    if (!PointsTo(p.parameter, p.param_data, p.grad)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter ", p.name,
          " no longer points into its bucket (module.to(), set_data()?): expected what was there "
          "when it was bound; change the module before it is wrapped"));
    }
    GS_RETURN_IF_ERROR(CheckGradient(p));
  }
  return absl::OkStatus();
}

absl::Status FlatParameters::CheckGradient(const FlatParameter& p) {
  const at::Tensor& grad = p.parameter.grad();
  if (grad.defined() && PointsTo(grad, p.grad.data_ptr(), p.grad)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "gradient of parameter ", p.name,
      grad.defined() ? " no longer points into its bucket" : " was removed (zero_grad to none?)",
      ": expected what was there when it was bound; zero_grad(false) keeps it"));
}

void FlatParameters::BumpVersions(int bucket) const {
  for (const FlatParameter& p : parameters_) {
    if (p.bucket == bucket) p.parameter.unsafeGetTensorImpl()->bump_version();
  }
}

std::string FlatParameters::Sha256() const {
  c10::NoGradGuard no_grad;
  gradsync::Sha256 hash;
  for (const FlatParameter& p : parameters_) {
    const at::Tensor row_major = p.parameter.contiguous().cpu();
    hash.Update(row_major.data_ptr(), row_major.nbytes());
  }
  return hash.HexDigest();
}

}  // namespace gradsync
