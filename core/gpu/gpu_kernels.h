// Starts the kernels of core/gpu/gpu_kernels.cu; what they compute is said in core/base/kernels.h.
// Only CudaApi calls these, with its device current.
//
// Each queues on `stream` and returns cudaSuccess or what kept it from starting. n may be 0, with
// any pointers. Pointers are to device or pinned memory, to floats at any float's address; where
// those of a call are the same modulo 16 bytes, they are read and written in 16 bytes at a time.

#ifndef GRADSYNC_CORE_GPU_GPU_KERNELS_H_
#define GRADSYNC_CORE_GPU_GPU_KERNELS_H_

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/kernels.h"
#include "core/gpu/kernel_operands.h"

namespace gradsync {

cudaError_t StartScaleTwice(float* x, size_t n, float a, float b, cudaStream_t stream);

// *factor, of the device or pinned, is read when the kernel runs.
cudaError_t StartScaleBy(float* x, size_t n, const float* factor, cudaStream_t stream);

cudaError_t StartSgdStep(const SgdCoefficients& c, float* param, const float* grad,
                         float* momentum_buffer, size_t n, cudaStream_t stream);

cudaError_t StartAdamStep(const AdamCoefficients& c, float* param, const float* grad,
                          float* exp_avg, float* exp_avg_sq, size_t n, cudaStream_t stream);

// The order of addition leaves 16 chains, so this runs on one multiprocessor and takes at least the
// time of n / 16 additions of doubles, one after the other. For n = 0 the sum is 0.
cudaError_t StartSumOfSquares(const float* x, size_t n, double* sum, cudaStream_t stream);

// A block for each piece, so the launch takes the time of the longest as long as all blocks fit on
// the GPU, some 500 of them on an H100.
cudaError_t StartSumsOfSquares(const SquaresPiece* pieces, size_t num_pieces, double* sums,
                               cudaStream_t stream);

// As GpuApi has it. cudaErrorInvalidValue for a layout that is none.
cudaError_t StartLookUpBytes(const ImageLayout& layout, const uint8_t* bytes, const void* table,
                             void* values, cudaStream_t stream);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_GPU_KERNELS_H_
