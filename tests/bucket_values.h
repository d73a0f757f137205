#ifndef GRADSYNC_TESTS_BUCKET_VALUES_H_
#define GRADSYNC_TESTS_BUCKET_VALUES_H_

#include <algorithm>
#include <vector>

#include "ATen/ops/from_blob.h"
#include "core/sync/gradient_sync.h"
#include "gradsync/ddp/tensor_over.h"
#include "tests/reference.h"

namespace gradsync {

// What the buckets hold in `which`, &GradBucket::grad or &GradBucket::param: all of each tensor,
// padding too. On a GPU, as of the calling thread's compute stream, which is waited for.
inline FlatValues Read(const std::vector<GradBucket>& buckets, FlatBuffer GradBucket::*which) {
  FlatValues values;
  for (const GradBucket& bucket : buckets) {
    const at::Tensor host = TensorOver(bucket.*which).cpu();
    const float* data = host.data_ptr<float>();
    values.emplace_back(data, data + host.numel());
  }
  return values;
}

// The other way, for values of the same sizes.
inline void Write(const FlatValues& values, const std::vector<GradBucket>& buckets,
                  FlatBuffer GradBucket::*which) {
  for (size_t b = 0; b < buckets.size(); ++b) {
    const FlatBuffer& flat = buckets[b].*which;
    if (flat.device == FlatBuffer::kHost) {
      std::copy(values[b].begin(), values[b].end(), flat.floats());
    } else {
      TensorOver(flat).copy_(at::from_blob(const_cast<float*>(values[b].data()), {flat.numel}));
    }
  }
}

}  // namespace gradsync

#endif  // GRADSYNC_TESTS_BUCKET_VALUES_H_
