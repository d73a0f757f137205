// Batch normalisation in training with what follows it (the addition of a residual, ReLU), in as
// few passes over memory as the arithmetic allows: on a GPU these layers cost what their bytes
// cost. Free of LibTorch; worker/models/image_kernels.h is what models call.
//
// Tensors are [rows, channels] with channels next to each other: images in channels-last format,
// rows = N * H * W. With E elements of two bytes, in units of 2E bytes:
//
//                          forward                           backward
//   norm, norm+ReLU        read x; read x, write y           read x, dy; read x, dy, write dx
//                          3                                 5
//   norm+residual+ReLU     read x; read x, residual,         read x, dy, bits, write d_residual;
//                          write y, bits                     read x, d_residual, write dx
//                          4 1/16                            6 1/16
//   ... whose output is used twice                           read another dy: 7 1/16
//
// Without a residual backward finds out again from x where ReLU let values through; with one,
// forward leaves a bit per element. An output that two operations use has two gradients, whose sum is
// read as it is needed: to add them up before would read two, and write one, more.
//
// Sums are in fp32 within a block of threads, shifted by each channel's first value so that a large
// mean costs no digits, and in fp64 across blocks, in an order that depends on the shape and the
// GPU alone: no two runs differ. Everything else is fp32, rounded once when stored.
//
// All calls queue two kernels on `stream` and nothing else (no allocation, no copy, no wait), so
// they can be captured in a graph. They return cudaSuccess or what kept a kernel from starting;
// only callers with the device current may call.

#ifndef GRADSYNC_WORKER_MODELS_NORM_KERNELS_H_
#define GRADSYNC_WORKER_MODELS_NORM_KERNELS_H_

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

namespace gradsync {

enum class NormType { kFloat, kHalf, kBfloat16 };

// Of x and all tensors of its size, whose first elements are at multiples of 16 bytes.
struct NormShape {
  NormType type = NormType::kFloat;
  int64_t rows = 0;      // at least 1
  int64_t channels = 0;  // a multiple of kNormChannels
};

constexpr int64_t kNormChannels = 8;

// Tickets that the kernels draw from, zero at first and again after each launch. Launches that may
// run at the same time need tickets of their own.
constexpr int kNormTickets = 64;

// The most channels: kNormTickets groups of 8 * 16.
constexpr int64_t kMostNormChannels = 8192;

// Floats of scratch memory that a call uses until its kernels are done, on a GPU with so many
// multiprocessors.
size_t NormScratchFloats(const NormShape& shape, int multiprocessors);

// Bytes of ReLU's bits.
inline size_t NormMaskBytes(const NormShape& shape) {
  return static_cast<size_t>(shape.rows * shape.channels / 8);
}

struct NormForward {
  const void* x = nullptr;
  const void* residual = nullptr;  // may be null: none
  bool relu = false;
  void* y = nullptr;        // relu(weight * (x - mean) / sqrt(variance + eps) + bias + residual)
  uint8_t* mask = nullptr;  // may be null; with a residual and ReLU, for backward

  // By channel, floats.
  const float* weight = nullptr;
  const float* bias = nullptr;
  float* mean = nullptr;     // become this batch's, for backward
  float* inv_std = nullptr;  // 1 / sqrt(variance + eps), the variance divided by rows
  // running += momentum * (batch - running), the variance divided by rows - 1.
  float* running_mean = nullptr;
  float* running_variance = nullptr;
  int64_t* batches = nullptr;  // incremented

  double momentum = 0.1;
  double eps = 1e-5;
  float* scratch = nullptr;
  unsigned* tickets = nullptr;
};

cudaError_t StartNormForward(const NormShape& shape, const NormForward& args, int multiprocessors,
                             cudaStream_t stream);

struct NormBackward {
  const void* x = nullptr;
  const void* dy = nullptr;
  const void* second_dy = nullptr;  // may be null; with a mask: added to dy
  void* dx = nullptr;
  bool relu = false;
  // With ReLU and a residual, both; else null. (Without ReLU d_residual is dy.)
  const uint8_t* mask = nullptr;
  void* d_residual = nullptr;

  // By channel, floats.
  const float* weight = nullptr;
  const float* bias = nullptr;
  const float* mean = nullptr;  // forward's
  const float* inv_std = nullptr;
  float* d_weight = nullptr;
  float* d_bias = nullptr;

  float* scratch = nullptr;
  unsigned* tickets = nullptr;
};

cudaError_t StartNormBackward(const NormShape& shape, const NormBackward& args, int multiprocessors,
                              cudaStream_t stream);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_NORM_KERNELS_H_
