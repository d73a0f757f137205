// What the plan knows about one parameter: its name and its shape in memory. No values, no
// LibTorch.

#ifndef GRADSYNC_CORE_PLAN_TENSOR_SPEC_H_
#define GRADSYNC_CORE_PLAN_TENSOR_SPEC_H_

#include <cstdint>
#include <string>
#include <vector>

namespace gradsync {

// One trainable parameter. Elements are fp32. `strides` (in elements) is part of the identity: a
// channels-last parameter and a contiguous one of the same shape hold their elements in different
// order, so their flat copies cannot be exchanged.
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

}  // namespace gradsync

#endif  // GRADSYNC_CORE_PLAN_TENSOR_SPEC_H_
