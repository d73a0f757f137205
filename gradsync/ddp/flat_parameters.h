// A torch module's parameters and gradients as views of the plan's flat buckets.

#ifndef GRADSYNC_GRADSYNC_DDP_FLAT_PARAMETERS_H_
#define GRADSYNC_GRADSYNC_DDP_FLAT_PARAMETERS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "c10/core/Device.h"
#include "core/plan/plan.h"
#include "core/sync/gradient_sync.h"

namespace torch {
namespace nn {
class Module;
}  // namespace nn
}  // namespace torch

namespace gradsync {

struct NamedParameter {
  std::string name;
  at::Tensor tensor;  // the module's own
};

// The module's trainable parameters (requires_grad) in named_parameters() order. A tensor that is
// registered under several names (tied weights) comes once, under the first of them.
std::vector<NamedParameter> TrainableParametersOf(const torch::nn::Module& module);

// What a plan needs to know about them, in the same order; every `group` is 0, for the caller to
// change. Errors: INVALID_ARGUMENT naming the first parameter that is not fp32, not on `device`,
// not strided, or that shares memory with another one without being the same tensor.
absl::StatusOr<std::vector<TensorSpec>> TensorSpecsOf(const torch::nn::Module& module,
                                                      c10::Device device = c10::DeviceType::CPU);

// One parameter after Bind(). The tensors are the module's own and the views, so copies share
// memory with the bucket.
struct FlatParameter {
  std::string name;
  int bucket = 0;
  at::Tensor parameter;  // the module's own tensor, now backed by GradBucket::param
  at::Tensor grad;       // a view of GradBucket::grad with the parameter's sizes and strides
  const void* param_data = nullptr;  // where `parameter` must point
  at::Tensor leaf;  // whose gradient autograd computes: `parameter`, or a copy in another type
};

// Binds the parameters of a module to buckets and watches that they stay there.
//
// Owns no memory of its own: the tensors keep the buckets alive, also in the module after this
// object is gone. Not thread-safe. No method blocks or throws.
class FlatParameters {
 public:
  FlatParameters() = default;

  // Copies every trainable parameter's values into its place in `buckets`, then makes the parameter
  // and its .grad views of that place; sizes and strides (channels-last included) stay. A gradient
  // that was there before is dropped. Nothing is changed when an error is returned. On a GPU the
  // copies are queued on the current stream. Errors: those of TensorSpecsOf() on the device of the
  // buckets; FAILED_PRECONDITION when the module's parameters are not the plan's, naming the first
  // that differs, or a bucket has not the plan's size or is not on that device.
  static absl::StatusOr<FlatParameters> Bind(const torch::nn::Module& module, const Plan& plan,
                                             const std::vector<GradBucket>& buckets);

  // The same where buckets share the memory of their parameters: as soon as a bucket has its values,
  // in order of buckets, `stored` takes them. What the parameters are afterwards is whatever lies in
  // that memory. The module may be on another device than the buckets: it comes to theirs a bucket
  // at a time, and never whole.
  static absl::StatusOr<FlatParameters> Bind(const torch::nn::Module& module, const Plan& plan,
                                             const std::vector<GradBucket>& buckets,
                                             const std::function<absl::Status(int bucket)>& stored);

  // Autograd computes the gradient of `leaf` from now on, of the parameter's sizes and strides, and
  // not the parameter's own.
  void SetLeaf(size_t index, at::Tensor leaf) { parameters_[index].leaf = std::move(leaf); }

  // In the order of Plan::tensors().
  const std::vector<FlatParameter>& parameters() const { return parameters_; }

  // Whether all parameters and gradients still are where Bind() put them; a few nanoseconds per
  // parameter. Errors: FAILED_PRECONDITION naming the first that is not, with the likely cause.
  absl::Status CheckViews() const;

  // The check of CheckViews() for one gradient.
  static absl::Status CheckGradient(const FlatParameter& parameter);

  // Tells autograd that the values of a bucket's parameters change: a graph that saved them, or a
  // tensor that shares memory with them such as parameter.detach(), then gets autograd's version
  // error instead of wrong gradients. To be called by whoever writes the bucket's memory behind
  // autograd's back.
  void BumpVersions(int bucket) const;

  // SHA-256, 64 hexadecimal digits, over the parameters in the order of Plan::tensors(), each as
  // its fp32 elements, little endian, in row-major order of the indices (so that neither memory
  // format nor device matters). Waits for a GPU, and copies from it.
  std::string Sha256() const;

 private:
  std::vector<FlatParameter> parameters_;
};

}  // namespace gradsync

#endif  // GRADSYNC_GRADSYNC_DDP_FLAT_PARAMETERS_H_
