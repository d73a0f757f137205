#include "worker/train/state_dict.h"

#include <cstring>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "core/base/status_macros.h"
#include "worker/checkpoint/read_weights.h"

namespace gradsync {
namespace {

constexpr std::pair<StoredType, at::ScalarType> kTypes[] = {
    {StoredType::kFloat64, at::kDouble}, {StoredType::kFloat32, at::kFloat},
    {StoredType::kFloat16, at::kHalf},   {StoredType::kBfloat16, at::kBFloat16},
    {StoredType::kInt64, at::kLong},     {StoredType::kInt32, at::kInt},
    {StoredType::kInt16, at::kShort},    {StoredType::kInt8, at::kChar},
    {StoredType::kUint8, at::kByte},     {StoredType::kBool, at::kBool},
};

at::ScalarType ScalarTypeOf(StoredType type) {
  for (const auto& [element, scalar] : kTypes) {
    if (element == type) return scalar;
  }
  return at::kFloat;
}

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

std::vector<NamedTensor> TensorsOf(const torch::nn::Module& module) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const std::string& path, const torch::nn::Module& one) {
    const std::string prefix = path.empty() ? "" : absl::StrCat(path, ".");
    for (const auto& item : one.named_parameters(/*recurse=*/false)) {
      tensors.push_back({prefix + item.key(), item.value()});
    }
    for (const auto& item : one.named_buffers(/*recurse=*/false)) {
      tensors.push_back({prefix + item.key(), item.value()});
    }
  };
  add("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    add(item.key(), *item.value());
  }
  return tensors;
}

}  // namespace

absl::StatusOr<HostTensor> ToHost(const std::string& name, const at::Tensor& tensor) {
  absl::optional<StoredType> type;
  for (const auto& [element, scalar] : kTypes) {
    if (scalar == tensor.scalar_type()) type = element;
  }
  if (!type.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", name, ": no file has the type ",
                                                   c10::toString(tensor.scalar_type())));
  }
  HostTensor host;
  host.name = name;
  host.type = *type;
  host.sizes = tensor.sizes().vec();
  try {
    const at::Tensor there = tensor.detach().to(at::kCPU).contiguous();
    if (there.nbytes() > 0) {
      host.data.assign(static_cast<const char*>(there.data_ptr()), there.nbytes());
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("copying ", name, ": LibTorch: ", e.what()));
  }
  return host;
}

at::Tensor FromHost(const HostTensor& host) {
  const at::Tensor tensor = at::empty(host.sizes, ScalarTypeOf(host.type));
  if (!host.data.empty()) std::memcpy(tensor.data_ptr(), host.data.data(), host.data.size());
  return tensor;
}

absl::StatusOr<std::vector<HostTensor>> StateDictOf(const torch::nn::Module& module) {
  std::vector<HostTensor> tensors;
  for (const NamedTensor& named : TensorsOf(module)) {
    GS_ASSIGN_OR_RETURN(HostTensor tensor, ToHost(named.name, named.tensor));
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<TensorShape> ShapesOf(const torch::nn::Module& module) {
  std::vector<TensorShape> shapes;
  for (const NamedTensor& named : TensorsOf(module)) {
    shapes.push_back({named.name, named.tensor.sizes().vec()});
  }
  return shapes;
}

absl::Status LoadStateDict(const std::vector<HostTensor>& tensors, torch::nn::Module& module,
                           const std::vector<std::string>& left) {
  const std::set<std::string> untouched(left.begin(), left.end());
  std::map<std::string, at::Tensor> wanted;
  std::vector<TensorShape> shapes;
  for (const NamedTensor& want : TensorsOf(module)) {
    if (untouched.count(want.name) > 0) continue;
    wanted[want.name] = want.tensor;
    shapes.push_back({want.name, want.tensor.sizes().vec()});
  }
  std::map<std::string, std::vector<int64_t>> found;
  for (const HostTensor& tensor : tensors) found[tensor.name] = tensor.sizes;
  GS_RETURN_IF_ERROR(CompareShapes(shapes, found));
  try {
    for (const HostTensor& tensor : tensors) {
      wanted[tensor.name].detach().copy_(FromHost(tensor));
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("loading weights: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
