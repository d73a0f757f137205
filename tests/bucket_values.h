#ifndef GRADSYNC_TESTS_BUCKET_VALUES_H_
#define GRADSYNC_TESTS_BUCKET_VALUES_H_

#include <algorithm>
#include <vector>

#include "sync/gradient_sync.h"
#include "tests/reference.h"

namespace gradsync {

// What the buckets hold in `which`, &GradBucket::grad or &GradBucket::param: all of each tensor,
// padding too.
inline FlatValues Read(const std::vector<GradBucket>& buckets, at::Tensor GradBucket::*which) {
  FlatValues values;
  for (const GradBucket& bucket : buckets) {
    const float* data = (bucket.*which).data_ptr<float>();
    values.emplace_back(data, data + (bucket.*which).numel());
  }
  return values;
}

// The other way, for values of the same sizes.
inline void Write(const FlatValues& values, const std::vector<GradBucket>& buckets,
                  at::Tensor GradBucket::*which) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    std::copy(values[b].begin(), values[b].end(), (buckets[b].*which).data_ptr<float>());
  }
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_BUCKET_VALUES_H_
