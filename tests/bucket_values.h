#ifndef GRADSYNC_TESTS_BUCKET_VALUES_H_
#define GRADSYNC_TESTS_BUCKET_VALUES_H_

#include <algorithm>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "core/sync/gradient_sync.h"
#include "tests/reference.h"

namespace gradsync {

// What the buckets hold in `which`, &GradBucket::grad or &GradBucket::param: all of each tensor,
// padding too. On a GPU, as of the calling thread's compute stream, which is waited for.
inline FlatValues Read(const std::vector<GradBucket>& buckets, at::Tensor GradBucket::*which) {
  FlatValues values;
  for (const GradBucket& bucket : buckets) {
    const at::Tensor host = (bucket.*which).cpu();
    const float* data = host.data_ptr<float>();
    values.emplace_back(data, data + host.numel());
  }
  return values;
}

// The other way, for values of the same sizes.
inline void Write(const FlatValues& values, const std::vector<GradBucket>& buckets,
                  at::Tensor GradBucket::*which) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    const at::Tensor& flat = buckets[b].*which;
    if (flat.device().is_cpu()) {
      std::copy(values[b].begin(), values[b].end(), flat.data_ptr<float>());
    } else {
      flat.copy_(at::from_blob(const_cast<float*>(values[b].data()), {flat.numel()}));
    }
  }
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_BUCKET_VALUES_H_
