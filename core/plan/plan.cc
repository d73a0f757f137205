#include "core/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/base/sha256.h"
#include "core/base/status_macros.h"

namespace gradsync {
namespace {

constexpr int64_t kAlignElements = 16;

int64_t AlignUp(int64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

// Dense means that some order of the dimensions makes the tensor contiguous; dimensions of size 1
// may have any stride.
bool IsDense(const TensorSpec& tensor) {
  std::vector<std::pair<int64_t, int64_t>> by_stride;
  for (size_t d = 0; d < tensor.sizes.size(); ++d) {
    if (tensor.sizes[d] != 1) by_stride.emplace_back(tensor.strides[d], tensor.sizes[d]);
  }
  std::sort(by_stride.begin(), by_stride.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : by_stride) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

absl::Status CheckTensors(const std::vector<TensorSpec>& tensors, const OptimizerSpec& optimizer) {
  absl::flat_hash_set<std::string> names;
  for (const TensorSpec& tensor : tensors) {
    if (tensor.name.empty() || !names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter name \"", tensor.name, "\": expected a name used once"));
    }
    if (tensor.sizes.size() != tensor.strides.size() ||
        std::any_of(tensor.sizes.begin(), tensor.sizes.end(), [](int64_t s) { return s < 1; }) ||
        !IsDense(tensor)) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", tensor.name,
                       ": expected sizes of at least 1 and dense strides, found sizes [",
                       absl::StrJoin(tensor.sizes, ","), "] strides [",
                       absl::StrJoin(tensor.strides, ","), "]"));
    }
    if (tensor.group < 0 || tensor.group >= static_cast<int>(optimizer.groups.size())) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", tensor.name, ": optimizer group ", tensor.group,
                       ", expected one of ", optimizer.groups.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPermutation(std::vector<int> order, size_t count) {
  std::sort(order.begin(), order.end());
  std::vector<int> expected(count);
  std::iota(expected.begin(), expected.end(), 0);
  if (order == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("order of parameters: expected each of ", count,
                                                 " once, found ", order.size(),
                                                 " entries with repetitions or gaps"));
}

absl::Status CheckRuns(const std::vector<RunCut>& runs, size_t buckets, int world_size) {
  if (runs.empty()) return absl::OkStatus();
  if (runs.size() != buckets) {
    return absl::InvalidArgumentError(
        absl::StrCat("runs: expected ", buckets, ", one for each bucket, found ", runs.size()));
  }
  for (const RunCut& run : runs) {
    if (run.chunk_elements >= kAlignElements && run.chunk_elements % kAlignElements == 0 &&
        run.lead >= 0 && run.lead % kAlignElements == 0 &&
        run.lead / run.chunk_elements < world_size) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("runs: expected chunks and a lead within a stripe in multiples of ",
                     kAlignElements, " elements, found ", run.chunk_elements, " and ", run.lead));
  }
  return absl::OkStatus();
}

BucketPlan PlaceTensors(const std::vector<int>& members, const std::vector<TensorSpec>& tensors) {
  BucketPlan bucket;
  for (int tensor : members) {
    bucket.tensors.push_back({tensor, bucket.numel});
    bucket.numel += AlignUp(tensors[tensor].numel());
  }
  return bucket;
}

}  // namespace

absl::StatusOr<Plan> Plan::Create(std::vector<TensorSpec> tensors,
                                  const std::vector<int>& ready_order, OptimizerSpec optimizer,
                                  const PlanOptions& options) {
  if (options.bucket_bytes < 1 || options.first_bucket_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("bucket bytes: expected at least 1, found ",
                                                   options.first_bucket_bytes, " (first) and ",
                                                   options.bucket_bytes));
  }
  GS_RETURN_IF_ERROR(CheckPermutation(ready_order, tensors.size()));
  std::vector<std::vector<int>> buckets;
  int64_t filled = 0;
  for (int tensor : ready_order) {
    const int64_t bytes = 4 * AlignUp(tensors[tensor].numel());
    const int64_t limit = buckets.size() == 1 ? options.first_bucket_bytes : options.bucket_bytes;
    if (buckets.empty() || filled + bytes > limit) {
      buckets.emplace_back();
      filled = 0;
    }
    buckets.back().push_back(tensor);
    filled += bytes;
  }
  GS_ASSIGN_OR_RETURN(const Plan plan,
                      FromBuckets(std::move(tensors), buckets, std::move(optimizer),
                                  options.world_size, options.chunk_bytes, options.codec));
  return plan.WithSlots(options.slots);
}

absl::StatusOr<Plan> Plan::FromBuckets(std::vector<TensorSpec> tensors,
                                       const std::vector<std::vector<int>>& buckets,
                                       OptimizerSpec optimizer, int world_size, int64_t chunk_bytes,
                                       Codec codec, const std::vector<RunCut>& runs) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size: expected at least 1, found ", world_size));
  }
  if (chunk_bytes != kNetworkChunks && (chunk_bytes < 0 || chunk_bytes % 64 != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_bytes: expected 0 (automatic) or a positive multiple of 64, found ", chunk_bytes));
  }
  // Its name is how it travels and what the fingerprint is made from.
  const absl::StatusOr<Codec> named = ParseCodec(CodecName(codec));
  if (!named.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("compression: ", named.status().message()));
  }
  GS_RETURN_IF_ERROR(optimizer.Validate());
  GS_RETURN_IF_ERROR(CheckTensors(tensors, optimizer));
  std::vector<int> members;
  for (const auto& bucket : buckets) members.insert(members.end(), bucket.begin(), bucket.end());
  GS_RETURN_IF_ERROR(CheckPermutation(members, tensors.size()));

  GS_RETURN_IF_ERROR(CheckRuns(runs, buckets.size(), world_size));
  Plan plan;
  plan.tensors_ = std::move(tensors);
  plan.optimizer_ = std::move(optimizer);
  plan.world_size_ = world_size;
  plan.codec_ = codec;
  plan.is_part_ = !runs.empty();
  for (const auto& members_of_bucket : buckets) {
    plan.buckets_.push_back(PlaceTensors(members_of_bucket, plan.tensors_));
  }
  if (chunk_bytes == kNetworkChunks) {
    chunk_bytes = NetworkChunkBytes(plan.total_bytes(), world_size);
  }
  plan.chunk_bytes_ = chunk_bytes;
  for (size_t b = 0; b < buckets.size(); ++b) {
    BucketPlan& bucket = plan.buckets_[b];
    const int64_t bytes =
        chunk_bytes != 0 ? chunk_bytes : DefaultChunkBytes(bucket.bytes(), world_size);
    bucket.layout = StripeLayout(bucket.numel, world_size, bytes / 4);
    if (!runs.empty()) {
      const RunCut& run = runs[b];
      bucket.layout = StripeLayout::OfRun(bucket.numel, world_size, run.chunk_elements, run.lead);
    }
  }
  plan.fingerprint_ = Sha256Hex(plan.Describe()).substr(0, 16);
  return plan;
}

absl::StatusOr<Plan> Plan::WithSlots(const BucketSlots& slots) const {
  if (slots.gradients < 0 || slots.parameters < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots: expected 0 or more of gradients and of parameters, found ",
                     slots.gradients, " and ", slots.parameters));
  }
  Plan plan = *this;
  plan.slots_ = slots;
  plan.fingerprint_ = Sha256Hex(plan.Describe()).substr(0, 16);
  return plan;
}

absl::StatusOr<Plan> Plan::Part(const std::vector<int>& members) const {
  const auto refuse = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("part of a plan: expected ", why));
  };
  if (codec_.compresses()) return refuse("a plan without compression");
  std::vector<int> number(tensors_.size(), -1);  // of a tensor in the part
  std::vector<TensorSpec> tensors;
  for (int member : members) {
    if (member < 0 || member >= static_cast<int>(tensors_.size()) ||
        (!tensors.empty() && number[member] >= 0)) {
      return refuse(absl::StrCat("indices below ", tensors_.size(), ", each once"));
    }
    number[member] = static_cast<int>(tensors.size());
    tensors.push_back(tensors_[member]);
  }
  std::vector<std::vector<int>> buckets;
  std::vector<RunCut> runs;
  for (const BucketPlan& bucket : buckets_) {
    bool in_run = false;
    for (size_t i = 0; i < bucket.tensors.size(); ++i) {
      const PlacedTensor& placed = bucket.tensors[i];
      const bool mine = number[placed.tensor] >= 0;
      if (mine && !in_run) {
        // Of the run only the beginning matters for the cut.
        const StripeLayout layout = bucket.layout.Run({placed.offset, bucket.numel});
        buckets.emplace_back();
        runs.push_back({layout.chunk_elements(), layout.lead()});
      }
      if (mine) buckets.back().push_back(number[placed.tensor]);
      in_run = mine;
    }
  }
  GS_ASSIGN_OR_RETURN(const Plan part, FromBuckets(std::move(tensors), buckets, optimizer_,
                                                   world_size_, chunk_bytes_, codec_, runs));
  return part.WithSlots(slots_);
}

int64_t Plan::total_bytes() const {
  int64_t bytes = 0;
  for (const BucketPlan& bucket : buckets_) bytes += bucket.bytes();
  return bytes;
}

std::vector<GroupRange> Plan::GroupRanges(int bucket, ElementRange range) const {
  std::vector<GroupRange> ranges;
  const std::vector<PlacedTensor>& all = buckets_[bucket].tensors;
  // Offsets rise, so that a bucket of many chunks and tensors does not take the product of both.
  auto placed = std::partition_point(all.begin(), all.end(), [&](const PlacedTensor& tensor) {
    return tensor.offset + tensors_[tensor.tensor].numel() <= range.begin;
  });
  for (; placed != all.end() && placed->offset < range.end; ++placed) {
    const TensorSpec& tensor = tensors_[placed->tensor];
    const int64_t begin = std::max(range.begin, placed->offset);
    const int64_t end = std::min(range.end, placed->offset + tensor.numel());
    if (begin >= end) continue;
    if (!ranges.empty() && ranges.back().group == tensor.group &&
        ranges.back().range.end == begin) {
      ranges.back().range.end = end;
    } else {
      ranges.push_back({{begin, end}, tensor.group});
    }
  }
  return ranges;
}

std::string Plan::Describe() const {
  std::string text =
      absl::StrCat("world_size ", world_size_, "\nchunk_bytes ", chunk_bytes_, "\ncompression ",
                   CodecName(codec_), "\noptimizer ", OptimizerKindName(optimizer_.kind), "\n");
  if (slots_.gradients > 0) absl::StrAppend(&text, "gradient slots ", slots_.gradients, "\n");
  if (slots_.parameters > 0) absl::StrAppend(&text, "parameter slots ", slots_.parameters, "\n");
  for (size_t i = 0; i < optimizer_.groups.size(); ++i) {
    const OptimizerGroup& g = optimizer_.groups[i];
    absl::StrAppendFormat(
        &text,
        "group %d lr_scale %.17g momentum %.17g dampening %.17g weight_decay %.17g "
        "beta1 %.17g beta2 %.17g eps %.17g nesterov %d\n",
        i, g.lr_scale, g.momentum, g.dampening, g.weight_decay, g.beta1, g.beta2, g.eps,
        g.nesterov);
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    for (const PlacedTensor& placed : buckets_[b].tensors) {
      const TensorSpec& t = tensors_[placed.tensor];
      absl::StrAppend(&text, "bucket ", b, " offset ", placed.offset, " ", t.name, " sizes [",
                      absl::StrJoin(t.sizes, ","), "] strides [", absl::StrJoin(t.strides, ","),
                      "] group ", t.group, "\n");
    }
    absl::StrAppend(&text, "bucket ", b, " stripes ", buckets_[b].layout.stripes(),
                    " of chunks of ", buckets_[b].layout.chunk_elements());
    const int64_t lead = buckets_[b].layout.lead();
    absl::StrAppend(&text, lead > 0 ? absl::StrCat(" but the first ", lead) : "", "\n");
  }
  return text;
}

std::string FirstDifference(const std::string& a, const std::string& b) {
  const std::vector<std::string> lines_a = absl::StrSplit(a, '\n');
  const std::vector<std::string> lines_b = absl::StrSplit(b, '\n');
  for (size_t i = 0; i < std::max(lines_a.size(), lines_b.size()); ++i) {
    const std::string line_a = i < lines_a.size() ? lines_a[i] : "(nothing)";
    const std::string line_b = i < lines_b.size() ? lines_b[i] : "(nothing)";
    if (line_a != line_b) return absl::StrCat("\"", line_a, "\" against \"", line_b, "\"");
  }
  return "";
}

namespace {

absl::Status CheckField(absl::string_view field, bool good, absl::string_view expected,
                        double found) {
  if (good && std::isfinite(found)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("step: ", field, ": expected a finite number ", expected, ", found ", found));
}

}  // namespace

std::string DescribeStep(const StepOptions& step) {
  return absl::StrCat("step ", step.step, " (lr ", step.lr, ", max_norm ", step.max_norm,
                      ", inverse_loss_scale ", step.inverse_loss_scale, ")");
}

absl::Status CheckStep(const StepOptions& step) {
  if (step.step < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: expected a number of at least 1, found ", step.step));
  }
  GS_RETURN_IF_ERROR(CheckField("lr", step.lr >= 0, "of at least 0", step.lr));
  GS_RETURN_IF_ERROR(CheckField("max_norm", step.max_norm >= 0, "of at least 0", step.max_norm));
  return CheckField("inverse_loss_scale", step.inverse_loss_scale > 0, "above 0",
                    step.inverse_loss_scale);
}

double ClipScale(const Plan& plan, double max_norm, absl::FunctionRef<double(ChunkId)> squares) {
  double sum = 0;
  for (int bucket = 0; bucket < static_cast<int>(plan.buckets().size()); ++bucket) {
    const StripeLayout& layout = plan.buckets()[bucket].layout;
    for (int slot = 0; slot < layout.slots(); ++slot) {
      if (!layout.range(slot).empty()) sum += squares({bucket, slot});
    }
  }
  const double scale = max_norm / (std::sqrt(sum) + 1e-6);
  return scale < 1 ? scale : 1;
}

}  // namespace gradsync
