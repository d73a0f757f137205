#include "gradsync/ddp/module_state.h"

#include <cstring>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/core/GradMode.h"
#include "core/base/status_macros.h"
#include "core/plan/plan.h"
#include "torch/nn/module.h"

namespace gradsync {
namespace {

// Ends the description; no name contains it.
constexpr char kEnd = '\0';

}  // namespace

std::vector<NamedParameter> BuffersOf(const torch::nn::Module& module) {
  std::vector<NamedParameter> buffers;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) buffers.push_back({item.key(), item.value()});
  }
  return buffers;
}

std::vector<NamedParameter> FrozenParametersOf(const torch::nn::Module& module) {
  std::vector<NamedParameter> frozen;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() && !item.value().requires_grad()) {
      frozen.push_back({item.key(), item.value()});
    }
  }
  return frozen;
}

std::vector<NamedParameter> UnplannedTensorsOf(const torch::nn::Module& module) {
  std::vector<NamedParameter> tensors = BuffersOf(module);
  for (NamedParameter& t : FrozenParametersOf(module)) tensors.push_back(std::move(t));
  return tensors;
}

std::string DescribeTensors(const std::vector<NamedParameter>& tensors) {
  std::string text;
  for (const NamedParameter& t : tensors) {
    absl::StrAppend(&text, t.name, " ", c10::toString(t.tensor.scalar_type()), " [",
                    absl::StrJoin(t.tensor.sizes(), ","), "]\n");
  }
  return text;
}

std::string PackTensors(const std::vector<NamedParameter>& tensors) {
  c10::NoGradGuard no_grad;
  std::string packed = DescribeTensors(tensors);
  packed.push_back(kEnd);
  for (const NamedParameter& t : tensors) {
    const at::Tensor values = t.tensor.contiguous().cpu();
    packed.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
  }
  return packed;
}

absl::Status UnpackTensors(absl::string_view packed, const std::vector<NamedParameter>& tensors) {
  const size_t end = packed.find(kEnd);
  const std::string theirs(packed.substr(0, end));
  const std::string ours = DescribeTensors(tensors);
  if (theirs != ours) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensors of the model: expected those of the sender, found others: ",
                     FirstDifference(theirs, ours)));
  }
  packed.remove_prefix(end == absl::string_view::npos ? packed.size() : end + 1);
  size_t bytes = 0;
  for (const NamedParameter& t : tensors) bytes += t.tensor.nbytes();
  if (packed.size() != bytes) {
    return absl::DataLossError(
        absl::StrCat("tensors of the model: expected ", bytes, " bytes, found ", packed.size()));
  }
  c10::NoGradGuard no_grad;
  for (const NamedParameter& t : tensors) {
    const at::Tensor values = at::empty(t.tensor.sizes(), t.tensor.scalar_type());
    if (values.nbytes() > 0) std::memcpy(values.data_ptr(), packed.data(), values.nbytes());
    packed.remove_prefix(values.nbytes());
    t.tensor.copy_(values);
  }
  return absl::OkStatus();
}

absl::Status BroadcastTensors(const std::vector<NamedParameter>& tensors, SideChannel* ranks,
                              Deadline deadline, int source) {
  if (ranks == nullptr || ranks->world_size() == 1) return absl::OkStatus();
  const bool sends = ranks->rank() == source;
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                      ranks->AllGather(sends ? PackTensors(tensors) : std::string(), deadline));
  return sends ? absl::OkStatus() : UnpackTensors(all[source], tensors);
}

}  // namespace gradsync
