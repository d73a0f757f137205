#include "tests/run_step.h"

#include <algorithm>

#include "ATen/ops/from_blob.h"
#include "gradsync/ddp/tensor_over.h"

namespace gradsync {

FlatValues Read(const std::vector<GradBucket>& buckets, FlatBuffer GradBucket::*which) {
  FlatValues values;
  for (const GradBucket& bucket : buckets) {
    const at::Tensor host = TensorOver(bucket.*which).cpu();
    const float* data = host.data_ptr<float>();
    values.emplace_back(data, data + host.numel());
  }
  return values;
}

void Write(const FlatValues& values, const std::vector<GradBucket>& buckets,
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
