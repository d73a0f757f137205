#ifndef GRADSYNC_WORKER_MODELS_SLICE_EXCHANGE_H_
#define GRADSYNC_WORKER_MODELS_SLICE_EXCHANGE_H_

#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"

namespace gradsync {

// How the slices of one model (worker/models/sliceable_model.h) meet in the midst of forward and
// backward. Models know nothing else of the other ranks. Not thread-safe.
//
// Every method is collective and blocks until all slices have come. All slices make the same calls
// in the same order with tensors of the same sizes and type, as those do that run parts of one model
// on the same batch. Nobody may write to the memory of a tensor that was passed. What is added up
// is added in the order of slices, so all get the same bits, in every run. Errors: the
// implementation's, after one of which every later call fails; INVALID_ARGUMENT for a tensor that
// differs from other slices'.
class SliceExchange {
 public:
  virtual ~SliceExchange() = default;

  virtual int slice() const = 0;   // this rank's, from 0
  virtual int slices() const = 0;  // how many there are

  // The sum of all slices' tensors, in memory of its own.
  virtual absl::StatusOr<at::Tensor> Sum(const at::Tensor& own) = 0;

  // `own` has a part for each slice along its first dimension. The sum of all slices' parts for
  // this one, without that dimension, in memory of its own.
  virtual absl::StatusOr<at::Tensor> SumPart(const at::Tensor& own) = 0;

  // All slices' tensors, by slice.
  virtual absl::StatusOr<std::vector<at::Tensor>> Gather(const at::Tensor& own) = 0;
};

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_SLICE_EXCHANGE_H_
