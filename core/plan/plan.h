// The plan: what is exchanged, in which buckets, cut how, and updated by which optimizer; and what
// of a step goes with it.
//
// Every rank builds the plan from its own parameters and options, and Bind() compares fingerprints,
// so that two ranks can never exchange different things. Backends, servers, benchmarks and the
// simulator read the same plan; nothing in it depends on topology, link or number of servers.

#ifndef GRADSYNC_CORE_PLAN_PLAN_H_
#define GRADSYNC_CORE_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plan/codec.h"
#include "core/plan/optimizer_spec.h"
#include "core/plan/stripes.h"

namespace gradsync {

// What the plan knows about one trainable parameter: its name and its shape in memory, no values.
// Elements are fp32. `strides` (in elements) is part of the identity: a channels-last parameter and a
// contiguous one of the same shape hold their elements in different order, so their flat copies
// cannot be exchanged.
struct TensorSpec {
  std::string name;  // as in the module's named_parameters(), e.g. "layer1.0.conv1.weight"
  std::vector<int64_t> sizes;    // elements per dimension; empty for a scalar
  std::vector<int64_t> strides;  // elements between neighbours, one per dimension, dense
  int group = 0;                 // index into OptimizerSpec::groups

  int64_t numel() const {
    int64_t product = 1;
    for (int64_t size : sizes) product *= size;
    return product;
  }

  friend bool operator==(const TensorSpec& a, const TensorSpec& b) {
    return a.name == b.name && a.sizes == b.sizes && a.strides == b.strides && a.group == b.group;
  }
};

// How many buckets have memory of their own at a time; all others take turns with them: bucket b has
// the memory of bucket b - slots when that one is done with it. 0: each has its own, always.
struct BucketSlots {
  // Of gradients. Bucket b's may be written when that of bucket b - gradients, if there is one, was
  // launched in the same step and its handle has resolved.
  int gradients = 0;
  // Of parameters. With any, owners alone keep them, and a bucket has them when it was gathered
  // (GradientSync::Gather()).
  int parameters = 0;

  friend bool operator==(const BucketSlots& a, const BucketSlots& b) {
    return a.gradients == b.gradients && a.parameters == b.parameters;
  }
};

struct PlanOptions {
  int world_size = 1;
  // A bucket is closed before a tensor that would make it larger than this; a tensor larger than it
  // has its own bucket.
  int64_t bucket_bytes = int64_t{25} << 20;
  // The same for the first bucket: small, so that the first exchange starts early in backward.
  int64_t first_bucket_bytes = int64_t{1} << 20;
  // Upper bound of a chunk, a positive multiple of 64; 0 chooses DefaultChunkBytes() per bucket,
  // kNetworkChunks NetworkChunkBytes() for all.
  int64_t chunk_bytes = 0;
  // What gradients are compressed with on the wire.
  Codec codec;
  BucketSlots slots;
};

// A tensor's place in its bucket. `offset` is in elements and a multiple of 16 (64 bytes).
struct PlacedTensor {
  int tensor = 0;  // index into Plan::tensors()
  int64_t offset = 0;
};

// One flat buffer of fp32. `numel` includes the padding between tensors, which is exchanged and
// counted like the rest and is always zero.
struct BucketPlan {
  std::vector<PlacedTensor> tensors;
  int64_t numel = 0;
  StripeLayout layout;

  int64_t bytes() const { return numel * 4; }
};

// A run of elements of a bucket that belong to one optimizer group. Padding belongs to none.
struct GroupRange {
  ElementRange range;
  int group = 0;
};

// Of a bucket that is a run of another one: see StripeLayout::OfRun().
struct RunCut {
  int64_t chunk_elements = 0;
  int64_t lead = 0;
};

// Immutable after creation, hence thread-safe; copies are deep and cheap next to any exchange.
class Plan {
 public:
  Plan() = default;

  // Packs `tensors` into buckets in the order `ready_order`, a permutation of their indices: the
  // order in which backward completes their gradients. Errors: INVALID_ARGUMENT for an empty or
  // repeated name, a size below 1, strides that are not dense, an order that is no permutation,
  // options out of range, or an optimizer that does not validate.
  static absl::StatusOr<Plan> Create(std::vector<TensorSpec> tensors,
                                     const std::vector<int>& ready_order, OptimizerSpec optimizer,
                                     const PlanOptions& options);

  // As Create(), with the buckets given as lists of tensor indices; how a plan that came over the
  // wire is rebuilt. `runs`: how each bucket is cut, where the plan is a Part(); else empty.
  static absl::StatusOr<Plan> FromBuckets(std::vector<TensorSpec> tensors,
                                          const std::vector<std::vector<int>>& buckets,
                                          OptimizerSpec optimizer, int world_size,
                                          int64_t chunk_bytes, Codec codec = Codec(),
                                          const std::vector<RunCut>& runs = {});

  // This plan, whose buckets share memory so. Errors: INVALID_ARGUMENT for a negative number.
  absl::StatusOr<Plan> WithSlots(const BucketSlots& slots) const;

  // The plan of `members`, indices of tensors, alone, whose every element is added up as this plan
  // has it. Each run of members that follow one another in a bucket is a bucket, in this plan's
  // order. Errors: INVALID_ARGUMENT for an index that is out of range or there twice, and for a
  // codec, which looks at whole chunks.
  absl::StatusOr<Plan> Part(const std::vector<int>& members) const;

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const std::vector<BucketPlan>& buckets() const { return buckets_; }
  const OptimizerSpec& optimizer() const { return optimizer_; }
  int world_size() const { return world_size_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }  // of PlanOptions: 0 or a number of bytes
  Codec codec() const { return codec_; }
  bool is_part() const { return is_part_; }  // made by Part()
  const BucketSlots& slots() const { return slots_; }
  int64_t total_bytes() const;  // gradient bytes of all buckets, padding included

  // Runs of one group in `range` of bucket `bucket`, in order, neighbours of the same group apart
  // when padding parts them.
  std::vector<GroupRange> GroupRanges(int bucket, ElementRange range) const;

  // A line per fact, the same on every machine. fingerprint() hashes it; FirstDifference() compares
  // it.
  std::string Describe() const;

  // SHA-256 of Describe(), the first 16 hexadecimal digits.
  const std::string& fingerprint() const { return fingerprint_; }

 private:
  std::vector<TensorSpec> tensors_;
  std::vector<BucketPlan> buckets_;
  OptimizerSpec optimizer_;
  int world_size_ = 1;
  int64_t chunk_bytes_ = 0;
  Codec codec_;
  bool is_part_ = false;
  BucketSlots slots_;
  std::string fingerprint_;
};

// The first line in which two descriptions differ, as `"a" against "b"`; empty when they are equal.
std::string FirstDifference(const std::string& a, const std::string& b);

// What changes from step to step and travels with it. Everything that does not change is in the
// plan.
struct StepOptions {
  // Count of optimizer steps, this one included; the first step of a job is 1. All ranks agree.
  int64_t step = 0;
  // Learning rate of this step; a group's is lr * lr_scale. Owners reject ranks that disagree.
  double lr = 0;
  // Clips the mean gradient to this global 2-norm; 0 does not clip. Owners then hold the step's
  // means until the last bucket, so that nothing of the update overlaps with backward.
  double max_norm = 0;
  // The mean is multiplied by this, after 1/n. 1 without loss scaling.
  double inverse_loss_scale = 1;

  friend bool operator==(const StepOptions& a, const StepOptions& b) {
    return a.step == b.step && a.lr == b.lr && a.max_norm == b.max_norm &&
           a.inverse_loss_scale == b.inverse_loss_scale;
  }
  friend bool operator!=(const StepOptions& a, const StepOptions& b) { return !(a == b); }
};

// "step 3 (lr 0.1, max_norm 0, inverse_loss_scale 1)", for errors.
std::string DescribeStep(const StepOptions& step);

// Whether a step can be trained with, as owners ask of what peers sent: a step of at least 1, a
// learning rate and a max_norm of at least 0, an inverse_loss_scale above 0 (with 0, which a message
// has by default, every mean would be 0), all finite.
// Errors: INVALID_ARGUMENT naming the field, what was expected and what came.
absl::Status CheckStep(const StepOptions& step);

// What means are to be multiplied by so that their global 2-norm is at most `max_norm`:
// min(1, max_norm / (norm + 1e-6)), as in torch's clip_grad_norm_. `squares` gives the sum of
// squares of a chunk. It is asked for each chunk that is not empty, in order of bucket and slot,
// and what it gives is added in that order, so that everybody gets the same bits.
double ClipScale(const Plan& plan, double max_norm, absl::FunctionRef<double(ChunkId)> squares);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_PLAN_H_
