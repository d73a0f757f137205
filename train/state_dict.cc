#include "train/state_dict.h"

#include <cstring>
#include <exception>
#include <map>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/status_macros.h"

namespace gradsync {
namespace {

constexpr std::pair<ElementType, at::ScalarType> kTypes[] = {
    {ElementType::kFloat64, at::kDouble}, {ElementType::kFloat32, at::kFloat},
    {ElementType::kFloat16, at::kHalf},   {ElementType::kBfloat16, at::kBFloat16},
    {ElementType::kInt64, at::kLong},     {ElementType::kInt32, at::kInt},
    {ElementType::kInt16, at::kShort},    {ElementType::kInt8, at::kChar},
    {ElementType::kUint8, at::kByte},     {ElementType::kBool, at::kBool},
};

at::ScalarType ScalarTypeOf(ElementType type) {
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

// "3 missing (a, b, ...)"
class Complaint {
 public:
  explicit Complaint(const char* what) : what_(what) {}

  void Add(std::string name) {
    if (count_++ < kNamed) names_.push_back(std::move(name));
  }

  void AppendTo(std::vector<std::string>* parts) const {
    if (count_ == 0) return;
    parts->push_back(absl::StrCat(count_, " ", what_, " (", absl::StrJoin(names_, ", "),
                                  count_ > kNamed ? ", ..." : "", ")"));
  }

 private:
  static constexpr int kNamed = 3;
  const char* const what_;
  int count_ = 0;
  std::vector<std::string> names_;
};

absl::Status Compare(const std::vector<NamedTensor>& wanted,
                     const std::map<std::string, const HostTensor*>& found) {
  Complaint missing("missing"), unexpected("unexpected"), other("of other sizes");
  std::map<std::string, int> known;
  for (const NamedTensor& want : wanted) {
    known[want.name] = 1;
    const auto have = found.find(want.name);
    if (have == found.end()) {
      missing.Add(want.name);
    } else if (want.tensor.sizes() != at::IntArrayRef(have->second->sizes)) {
      other.Add(absl::StrCat(want.name, ": expected [", absl::StrJoin(want.tensor.sizes(), ", "),
                             "], found [", absl::StrJoin(have->second->sizes, ", "), "]"));
    }
  }
  for (const auto& [name, tensor] : found) {
    if (known.count(name) == 0) unexpected.Add(name);
  }
  std::vector<std::string> parts;
  for (const Complaint* complaint : {&missing, &unexpected, &other}) complaint->AppendTo(&parts);
  if (parts.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected the model's ", wanted.size(),
                                                 " tensors, found ", absl::StrJoin(parts, "; ")));
}

}  // namespace

absl::StatusOr<HostTensor> ToHost(const std::string& name, const at::Tensor& tensor) {
  absl::optional<ElementType> type;
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

absl::Status LoadStateDict(const std::vector<HostTensor>& tensors, torch::nn::Module& module) {
  const std::vector<NamedTensor> wanted = TensorsOf(module);
  std::map<std::string, const HostTensor*> found;
  for (const HostTensor& tensor : tensors) found[tensor.name] = &tensor;
  GS_RETURN_IF_ERROR(Compare(wanted, found));
  try {
    for (const NamedTensor& want : wanted) {
      want.tensor.detach().copy_(FromHost(*found[want.name]));
    }
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("loading weights: LibTorch: ", e.what()));
  }
  return absl::OkStatus();
}

}  // namespace gradsync
