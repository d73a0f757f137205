// Tensors as frames between the stages of a pipeline.

#ifndef GRADSYNC_WORKER_PIPELINE_TENSOR_FRAMES_H_
#define GRADSYNC_WORKER_PIPELINE_TENSOR_FRAMES_H_

#include <cstdint>
#include <string>
#include <tuple>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "core/links/frame_stream.h"
#include "proto/frame.pb.h"

namespace gradsync {

// Which of the tensors that pass an edge between two neighbours this is. An edge has two
// directions, and a tensor goes in one of them by what it is.
struct TensorKey {
  enum What {
    kActivation = 1,  // forward: the input of the stage behind
    kGradient = 2,    // backward: of that input
    kFigures = 3,     // backward: what the last stage knows of the whole step
    kTestInput = 4,   // forward, in an evaluation
    kTestCredit = 5,  // backward: one more may be sent
    kOfSlice = 6,     // both ways between two slices; `step` counts their exchanges
  };
  What what = kActivation;
  int64_t step = 0;
  int64_t micro_batch = 0;

  friend bool operator<(const TensorKey& a, const TensorKey& b) {
    return std::tie(a.what, a.step, a.micro_batch) < std::tie(b.what, b.step, b.micro_batch);
  }
};

// "the gradient of micro-batch 3 of step 7", for messages.
std::string DescribeKey(const TensorKey& key);

// A frame of `tensor`'s values, whose memory it keeps and does not copy, unless they lie with gaps:
// nobody may write to it afterwards. The receiver gets the same sizes and, where they are dense,
// strides, since what a tensor's memory looks like may decide how an operation adds. On the CPU,
// of type float, bfloat16 or half.
OutgoingFrame TensorFrame(const TensorKey& key, const at::Tensor& tensor);

// The key in a TENSOR frame. Errors: INVALID_ARGUMENT for another frame, or no such key.
absl::StatusOr<TensorKey> KeyIn(const proto::FrameHeader& header);

// A tensor of its own with the frame's values. Checks everything before it allocates. Errors:
// INVALID_ARGUMENT for a type, sizes or strides that TensorFrame() does not make, and a payload of
// another length; RESOURCE_EXHAUSTED.
absl::StatusOr<at::Tensor> TensorIn(const proto::FrameHeader& header, const Payload& payload);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_PIPELINE_TENSOR_FRAMES_H_
