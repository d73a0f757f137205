#include "gradsync/ddp/plan_agreement.h"

#include <numeric>
#include <string>
#include <utility>

#include "ATen/ops/empty.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/base/host_identity.h"
#include "core/base/status_macros.h"
#include "core/plan/stripes.h"
#include "gradsync/ddp/flat_parameters.h"
#include "gradsync/ddp/module_state.h"
#include "gradsync/ddp/parameter_gathers.h"
#include "gradsync/ddp/ready_order.h"
#include "gradsync/ddp/tensor_over.h"
#include "torch/nn/module.h"

namespace gradsync {
namespace {

// The reverse of registration: the last layers' gradients come first.
std::vector<int> ReverseOrder(size_t count) {
  std::vector<int> order(count);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

int RankOf(const SideChannel* side_channel) {
  return side_channel == nullptr ? 0 : side_channel->rank();
}

// Those who train the module together, if only a part of it each; null: nobody else.
template <typename Channel>
Channel* RanksOf(const DdpEngineOptions& options, Channel* side_channel) {
  return options.part.has_value() ? options.part->all_ranks : side_channel;
}

absl::Status CheckOnDevice(const std::vector<NamedParameter>& tensors, c10::Device device) {
  for (const NamedParameter& t : tensors) {
    if (t.tensor.device() == device && t.tensor.layout() == at::kStrided) continue;
    return absl::InvalidArgumentError(absl::StrCat(t.name, ": expected a strided tensor on ",
                                                   device.str(), ", found ",
                                                   t.tensor.device().str()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const torch::nn::Module& module, const std::vector<int>& order,
                              const DdpEngineOptions& options, c10::Device device) {
  GS_ASSIGN_OR_RETURN(std::vector<TensorSpec> specs, TensorSpecsOf(module, device));
  if (options.group_of != nullptr) {
    for (TensorSpec& spec : specs) spec.group = options.group_of(spec);
  }
  return Plan::Create(std::move(specs), order, options.optimizer, options.plan);
}

// Where the module's tensors are to be.
c10::Device DeviceFor(const torch::nn::Module& module, const DdpEngineOptions& options,
                      const GradientSync& sync) {
  const std::vector<NamedParameter> parameters = TrainableParametersOf(module);
  if (!options.units.empty() && !parameters.empty()) return parameters[0].tensor.device();
  return TensorDevice(sync.gpu().get());
}

// What each rank tells the others: "order 2,1,0" and its unplanned tensors, a line each; or its
// error.
constexpr char kOrder[] = "order ";

std::string EncodeAnswer(const absl::StatusOr<std::vector<int>>& order,
                         const torch::nn::Module& module) {
  if (!order.ok()) return order.status().ToString();
  return absl::StrCat(kOrder, absl::StrJoin(*order, ","), "\n",
                      DescribeTensors(UnplannedTensorsOf(module)));
}

absl::StatusOr<std::vector<int>> DecodeOrder(absl::string_view answer) {
  const absl::string_view line = answer.substr(0, answer.find('\n'));
  std::vector<int> order;
  for (absl::string_view number : absl::StrSplit(absl::StripPrefix(line, kOrder), ',')) {
    if (!absl::SimpleAtoi(number, &order.emplace_back())) {
      return absl::DataLossError(
          absl::StrCat("order of parameters from rank 0: expected numbers, found ", line));
    }
  }
  return order;
}

absl::string_view DescriptionIn(absl::string_view answer) {
  const size_t end = answer.find('\n');
  return end == absl::string_view::npos ? absl::string_view() : answer.substr(end + 1);
}

// Collective: rank 0's order for all, or an error for all, so that no rank waits for one that gave
// up.
absl::StatusOr<std::vector<int>> AgreeOnOrder(const absl::StatusOr<std::vector<int>>& own,
                                              const torch::nn::Module& module,
                                              SideChannel* side_channel, Deadline deadline) {
  if (side_channel == nullptr) return own;
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                      side_channel->AllGather(EncodeAnswer(own, module), deadline));
  GS_RETURN_IF_ERROR(own.status());
  for (size_t rank = 0; rank < answers.size(); ++rank) {
    if (!absl::StartsWith(answers[rank], kOrder)) {
      return absl::AbortedError(absl::StrCat(side_channel->Name(rank),
                                             " refused its module or options: ", answers[rank]));
    }
    if (DescriptionIn(answers[rank]) != DescriptionIn(answers[0])) {
      return absl::FailedPreconditionError(
          absl::StrCat("buffers and frozen parameters differ between ", side_channel->Name(0),
                       " and ", side_channel->Name(rank), ": ",
                       FirstDifference(std::string(DescriptionIn(answers[0])),
                                       std::string(DescriptionIn(answers[rank])))));
    }
  }
  return DecodeOrder(answers[0]);
}

// Collective: PlanOptions::chunk_bytes for ranks of which nobody has asked for any. 0, which is by the
// size of buckets, where all ranks are on one host (core/base/host_identity.h); kNetworkChunks where
// they are on several, or where one cannot say on which. The same on all ranks.
absl::StatusOr<int64_t> ChunkBytesByHosts(SideChannel& ranks, Deadline deadline) {
  const absl::StatusOr<HostIdentity> own = ReadHostIdentity();
  GS_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                      ranks.AllGather(own.ok() ? own->Key() : std::string(), deadline));
  for (const std::string& host : hosts) {
    if (host.empty() || host != hosts[0]) return kNetworkChunks;
  }
  return 0;
}

// Makes `plan` that of the part, and lets go of what is not in it.
absl::Status TakePart(const DdpPart& part, const torch::nn::Module& module, Plan* plan) {
  std::vector<int> members;
  std::vector<at::Tensor> others;
  const std::vector<NamedParameter> parameters = TrainableParametersOf(module);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const bool mine = members.size() < part.parameters.size() &&
                      parameters[i].name == part.parameters[members.size()];
    if (mine) {
      members.push_back(static_cast<int>(i));
    } else {
      others.push_back(parameters[i].tensor);
    }
  }
  if (members.size() < part.parameters.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("part: expected trainable parameters in the module's order, found ",
                     part.parameters[members.size()]));
  }
  GS_ASSIGN_OR_RETURN(*plan, plan->Part(members));
  for (const at::Tensor& other : others) {
    other.requires_grad_(false);
    other.set_data(at::empty({0}, other.options()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckOptions(const DdpEngineOptions& options, const GradientSync* sync) {
  if (sync == nullptr) return absl::InvalidArgumentError("sync: expected an object, found null");
  if (options.skip_nonfinite_steps && sync->update_site() != UpdateSite::kWorker) {
    return absl::InvalidArgumentError(
        "skip_nonfinite_steps: expected update at the workers, found update at the owners, who "
        "cannot skip a step");
  }
  if (!options.updates && sync->update_site() != UpdateSite::kWorker) {
    return absl::InvalidArgumentError(
        "updates: expected true where owners update the parameters, found false");
  }
  if (options.after_exchange != nullptr && sync->update_site() != UpdateSite::kWorker) {
    return absl::InvalidArgumentError(
        "after_exchange: expected null where owners update the parameters, whose mean no rank has, "
        "found a function");
  }
  if (options.copies.has_value() && !options.units.empty()) {
    return absl::InvalidArgumentError(
        "copies: expected parameters that stay, found units of them that come and go");
  }
  const BucketSlots& slots = options.plan.slots;
  if ((slots.gradients > 0 || !options.units.empty()) &&
      sync->update_site() != UpdateSite::kOwner) {
    return absl::InvalidArgumentError(
        "plan.slots: expected update at the owners where buckets share memory, found update at the "
        "workers, who need all gradients");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int>> ObserveOrder(const torch::nn::Module& module,
                                              const DdpEngineOptions& options,
                                              const GradientSync& sync,
                                              const SideChannel* side_channel) {
  const c10::Device device = DeviceFor(module, options, sync);
  const int rank = RankOf(RanksOf(options, side_channel));
  const std::vector<int> reverse = ReverseOrder(TrainableParametersOf(module).size());
  if (reverse.empty()) {
    return absl::InvalidArgumentError("module: expected trainable parameters, found none");
  }
  GS_RETURN_IF_ERROR(MakePlan(module, reverse, options, device).status());
  GS_RETURN_IF_ERROR(CheckOnDevice(UnplannedTensorsOf(module), device));
  if (rank != 0 || options.forward_backward == nullptr) return reverse;
  return ObserveReadyOrder(module, options.forward_backward, options.find_unused_parameters);
}

absl::StatusOr<Plan> AgreeOnPlan(const absl::StatusOr<std::vector<int>>& own_order,
                                 const torch::nn::Module& module, const GradientSync& sync,
                                 SideChannel* side_channel, Deadline deadline,
                                 DdpEngineOptions* options) {
  SideChannel* const ranks = RanksOf(*options, side_channel);
  if (options->plan.chunk_bytes == 0 && options->earlier_chunk_bytes.has_value()) {
    options->plan.chunk_bytes = *options->earlier_chunk_bytes;
  } else if (options->plan.chunk_bytes == 0 && ranks != nullptr) {
    GS_ASSIGN_OR_RETURN(options->plan.chunk_bytes, ChunkBytesByHosts(*ranks, deadline));
  }
  GS_ASSIGN_OR_RETURN(const std::vector<int> order,
                      AgreeOnOrder(own_order, module, ranks, deadline));
  GS_ASSIGN_OR_RETURN(Plan plan,
                      MakePlan(module, order, *options, DeviceFor(module, *options, sync)));
  if (options->part.has_value()) GS_RETURN_IF_ERROR(TakePart(*options->part, module, &plan));
  if (!options->units.empty()) GS_RETURN_IF_ERROR(MakeParameterSlots(options->units, &plan));
  return plan;
}

}  // namespace gradsync
