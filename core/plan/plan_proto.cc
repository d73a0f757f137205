#include "core/plan/plan_proto.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

// Far above what one job can train, far below what overflows.
constexpr int64_t kMaxElements = int64_t{1} << 36;
constexpr int64_t kMaxSlots = int64_t{1} << 24;
constexpr int kMaxWorldSize = 1 << 16;
constexpr int64_t kMaxChunkBytes = int64_t{1} << 30;

absl::Status Refuse(absl::string_view field, absl::string_view expected, int64_t found) {
  return absl::InvalidArgumentError(
      absl::StrCat("plan message: ", field, ": expected ", expected, ", found ", found));
}

absl::StatusOr<TensorSpec> TensorFromProto(const proto::TensorSpec& message) {
  TensorSpec tensor;
  tensor.name = message.name();
  tensor.sizes.assign(message.sizes().begin(), message.sizes().end());
  tensor.strides.assign(message.strides().begin(), message.strides().end());
  tensor.group = message.group();
  int64_t numel = 1;
  for (int64_t size : tensor.sizes) {
    if (size < 1 || size > kMaxElements / numel) {
      return Refuse(absl::StrCat("sizes of \"", tensor.name, "\""),
                    absl::StrCat("each at least 1 and a product of at most ", kMaxElements), size);
    }
    numel *= size;
  }
  return tensor;
}

absl::StatusOr<OptimizerKind> KindFromName(absl::string_view name) {
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW}) {
    if (OptimizerKindName(kind) == name) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "plan message: optimizer.kind: expected sgd, adam or adamw, found \"", name, "\""));
}

absl::StatusOr<OptimizerSpec> OptimizerFromProto(const proto::OptimizerSpec& message) {
  OptimizerSpec spec;
  GS_ASSIGN_OR_RETURN(spec.kind, KindFromName(message.kind()));
  spec.groups.clear();
  for (const proto::OptimizerGroup& from : message.groups()) {
    OptimizerGroup& group = spec.groups.emplace_back();
    group.lr_scale = from.lr_scale();
    group.momentum = from.momentum();
    group.dampening = from.dampening();
    group.weight_decay = from.weight_decay();
    group.beta1 = from.beta1();
    group.beta2 = from.beta2();
    group.eps = from.eps();
    group.nesterov = from.nesterov();
  }
  return spec;
}

// Bounds the number of chunks, which is what Plan::FromBuckets and everything after it allocate by.
absl::Status CheckSlots(const proto::Plan& message, const std::vector<TensorSpec>& tensors) {
  int64_t elements = 0;
  int64_t slots = 0;
  for (const proto::Bucket& bucket : message.buckets()) {
    int64_t bucket_elements = 0;
    for (int32_t tensor : bucket.tensors()) {
      if (tensor < 0 || tensor >= message.tensors_size()) {
        return Refuse("buckets.tensors", absl::StrCat("an index below ", message.tensors_size()),
                      tensor);
      }
      bucket_elements += tensors[tensor].numel() + 15;
      if (elements + bucket_elements > kMaxElements) {
        return Refuse("buckets", absl::StrCat("at most ", kMaxElements, " elements"),
                      elements + bucket_elements);
      }
    }
    elements += bucket_elements;
    int64_t chunk_bytes = message.chunk_bytes() != 0
                              ? message.chunk_bytes()
                              : DefaultChunkBytes(4 * bucket_elements, message.world_size());
    if (bucket.chunk_elements() != 0) {
      const int64_t most = kMaxChunkBytes / 4;
      if (bucket.chunk_elements() < 1 || bucket.chunk_elements() > most) {
        return Refuse("buckets.chunk_elements", absl::StrCat("1 to ", most),
                      bucket.chunk_elements());
      }
      chunk_bytes = 4 * bucket.chunk_elements();
    }
    // A run may begin and end in the midst of a stripe.
    slots += 4 * bucket_elements / chunk_bytes + 2 * message.world_size();
    if (slots > kMaxSlots) {
      return Refuse("buckets", absl::StrCat("a cut into at most ", kMaxSlots, " chunks"), slots);
    }
  }
  return absl::OkStatus();
}

}  // namespace

proto::Plan PlanToProto(const Plan& plan) {
  proto::Plan message;
  for (const TensorSpec& tensor : plan.tensors()) {
    proto::TensorSpec& to = *message.add_tensors();
    to.set_name(tensor.name);
    to.mutable_sizes()->Add(tensor.sizes.begin(), tensor.sizes.end());
    to.mutable_strides()->Add(tensor.strides.begin(), tensor.strides.end());
    to.set_group(tensor.group);
  }
  for (const BucketPlan& bucket : plan.buckets()) {
    proto::Bucket& to = *message.add_buckets();
    for (const PlacedTensor& placed : bucket.tensors) to.add_tensors(placed.tensor);
    if (!plan.is_part()) continue;
    to.set_chunk_elements(bucket.layout.chunk_elements());
    to.set_lead(bucket.layout.lead());
  }
  message.mutable_optimizer()->set_kind(OptimizerKindName(plan.optimizer().kind));
  for (const OptimizerGroup& group : plan.optimizer().groups) {
    proto::OptimizerGroup& to = *message.mutable_optimizer()->add_groups();
    to.set_lr_scale(group.lr_scale);
    to.set_momentum(group.momentum);
    to.set_dampening(group.dampening);
    to.set_weight_decay(group.weight_decay);
    to.set_beta1(group.beta1);
    to.set_beta2(group.beta2);
    to.set_eps(group.eps);
    to.set_nesterov(group.nesterov);
  }
  message.set_world_size(plan.world_size());
  message.set_chunk_bytes(plan.chunk_bytes());
  if (plan.codec().compresses()) message.set_compression(CodecName(plan.codec()));
  message.set_gradient_slots(plan.slots().gradients);
  message.set_parameter_slots(plan.slots().parameters);
  return message;
}

absl::StatusOr<Plan> PlanFromProto(const proto::Plan& message) {
  if (message.world_size() < 1 || message.world_size() > kMaxWorldSize) {
    return Refuse("world_size", absl::StrCat("1 to ", kMaxWorldSize), message.world_size());
  }
  if (message.chunk_bytes() < 0 || message.chunk_bytes() > kMaxChunkBytes) {
    return Refuse("chunk_bytes", absl::StrCat("0 to ", kMaxChunkBytes), message.chunk_bytes());
  }
  std::vector<TensorSpec> tensors;
  for (const proto::TensorSpec& tensor : message.tensors()) {
    GS_ASSIGN_OR_RETURN(TensorSpec spec, TensorFromProto(tensor));
    tensors.push_back(std::move(spec));
  }
  if (message.buckets().empty()) {
    return absl::InvalidArgumentError("plan message: expected buckets, found none");
  }
  GS_RETURN_IF_ERROR(CheckSlots(message, tensors));
  std::vector<std::vector<int>> buckets;
  std::vector<RunCut> runs;
  for (const proto::Bucket& bucket : message.buckets()) {
    buckets.emplace_back(bucket.tensors().begin(), bucket.tensors().end());
    if (bucket.chunk_elements() != 0) runs.push_back({bucket.chunk_elements(), bucket.lead()});
  }
  GS_ASSIGN_OR_RETURN(OptimizerSpec optimizer, OptimizerFromProto(message.optimizer()));
  const absl::StatusOr<Codec> codec = ParseCodec(message.compression());
  if (!codec.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("plan message: compression: ", codec.status().message()));
  }
  GS_ASSIGN_OR_RETURN(const Plan plan,
                      Plan::FromBuckets(std::move(tensors), buckets, std::move(optimizer),
                                        message.world_size(), message.chunk_bytes(), *codec, runs));
  BucketSlots slots;
  slots.gradients = message.gradient_slots();
  slots.parameters = message.parameter_slots();
  return plan.WithSlots(slots);
}

}  // namespace gradsync
