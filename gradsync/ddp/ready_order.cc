#include "gradsync/ddp/ready_order.h"

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/Tensor.h"
#include "absl/strings/str_cat.h"
#include "c10/core/GradMode.h"
#include "c10/util/Exception.h"
#include "core/base/errors.h"
#include "core/base/status_macros.h"
#include "gradsync/ddp/flat_parameters.h"
#include "gradsync/ddp/name_list.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/utils/lambda_post_hook.h"
#include "torch/csrc/autograd/variable.h"
#include "torch/nn/module.h"

namespace gradsync {
namespace {

using torch::autograd::variable_list;
using torch::autograd::utils::LambdaPostHook;

// A tensor and the values it had.
struct SavedTensor {
  at::Tensor tensor;
  at::Tensor values;
};

// Puts everything back that a forward and backward change.
class RestoreOnExit {
 public:
  explicit RestoreOnExit(const torch::nn::Module& module) {
    c10::NoGradGuard no_grad;
    for (const auto& item : module.named_buffers()) {
      if (item.value().defined()) buffers_.push_back({item.value(), item.value().clone()});
    }
    for (const auto& item : module.named_parameters()) {
      if (!item.value().defined()) continue;
      const at::Tensor& grad = item.value().grad();
      gradients_.push_back({item.value(), grad, grad.defined() ? grad.clone() : at::Tensor()});
      // A gradient that is there would be added to, so that backward could not hand over its own.
      item.value().mutable_grad() = at::Tensor();
    }
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    random_state_ = generator.get_state();
  }

  ~RestoreOnExit() {
    c10::NoGradGuard no_grad;
    for (const SavedTensor& buffer : buffers_) buffer.tensor.copy_(buffer.values);
    for (const SavedGradient& saved : gradients_) {
      if (saved.values.defined()) saved.grad.copy_(saved.values);
      saved.parameter.mutable_grad() = saved.grad;
    }
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(random_state_);
  }

 private:
  struct SavedGradient {
    at::Tensor parameter;
    at::Tensor grad;  // the tensor that was in .grad
    at::Tensor values;
  };

  std::vector<SavedTensor> buffers_;
  std::vector<SavedGradient> gradients_;
  at::Tensor random_state_;
};

// Records, per parameter, each time that its gradient is complete.
class Recorder {
 public:
  explicit Recorder(const std::vector<NamedParameter>& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].tensor);
      const uintptr_t key = accumulator->add_post_hook(std::make_unique<LambdaPostHook>(
          [order = order_, i](const variable_list& outputs, const variable_list&) {
            order->push_back(static_cast<int>(i));
            return outputs;
          }));
      hooks_.push_back({std::move(accumulator), key});
    }
  }

  ~Recorder() {
    for (const Hook& hook : hooks_) hook.accumulator->del_post_hook(hook.key);
  }

  const std::vector<int>& order() const { return *order_; }

 private:
  struct Hook {
    decltype(torch::autograd::impl::grad_accumulator(at::Tensor())) accumulator;
    uintptr_t key;
  };

  std::shared_ptr<std::vector<int>> order_ = std::make_shared<std::vector<int>>();
  std::vector<Hook> hooks_;
};

absl::Status RunUserCode(const std::function<void()>& forward_backward) {
  try {
    forward_backward();
    return absl::OkStatus();
  } catch (const c10::Error& error) {
    return absl::InternalError(
        absl::StrCat("forward_backward threw: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("forward_backward threw: ", FirstLine(error.what())));
  } catch (...) {
    return absl::InternalError("forward_backward threw something that is no std::exception");
  }
}

// Appends those that are not in `order` where they may be missing.
absl::Status CheckOnceEach(const std::vector<NamedParameter>& parameters, bool allow_unused,
                           std::vector<int>* order) {
  std::vector<int> counts(parameters.size());
  for (int index : *order) ++counts[index];
  std::vector<std::string> unused, repeated;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (counts[i] == 0) unused.push_back(parameters[i].name);
    if (counts[i] > 1) repeated.push_back(parameters[i].name);
  }
  for (size_t i = parameters.size(); allow_unused && i-- > 0;) {
    if (counts[i] == 0) order->push_back(static_cast<int>(i));
  }
  if (!unused.empty() && !allow_unused) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected a gradient for each of ", parameters.size(), " parameters, found none for ",
        NameList(unused), ": use them in forward or freeze them (requires_grad)"));
  }
  if (!repeated.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected one gradient per parameter and backward, found several for ", NameList(repeated),
        ": forward_backward must run one backward, without reentrant ones"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int>> ObserveReadyOrder(const torch::nn::Module& module,
                                                   const std::function<void()>& forward_backward,
                                                   bool allow_unused) {
  const std::vector<NamedParameter> parameters = TrainableParametersOf(module);
  if (!parameters.empty()) {
    GS_RETURN_IF_ERROR(TensorSpecsOf(module, parameters[0].tensor.device()).status());
  }
  const RestoreOnExit restore(module);
  const Recorder recorder(parameters);
  GS_RETURN_IF_ERROR(RunUserCode(forward_backward));
  std::vector<int> order = recorder.order();
  GS_RETURN_IF_ERROR(CheckOnceEach(parameters, allow_unused, &order));
  return order;
}

}  // namespace gradsync
