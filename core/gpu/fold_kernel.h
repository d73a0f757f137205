// Starts the kernel of core/gpu/fold_kernel.cu. Only CudaApi calls it, with its device current.

#ifndef GRADSYNC_CORE_GPU_FOLD_KERNEL_H_
#define GRADSYNC_CORE_GPU_FOLD_KERNEL_H_

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "core/gpu/kernel_operands.h"

namespace gradsync {

// GpuApi::FoldMean(). The numbers of sources and destinations have been checked. Returns
// cudaSuccess or what kept the kernel from starting.
//
// It runs at the speed of memory where all sources and destinations have the same address modulo 16
// bytes, and reads and writes float by float elsewhere.
cudaError_t StartFoldMean(const FoldPiece* pieces, size_t num_pieces, const float* const* sources,
                          size_t num_sources, float* const* destinations, size_t num_destinations,
                          float a, float b, cudaStream_t stream);

}  // namespace gradsync

#endif  // GRADSYNC_CORE_GPU_FOLD_KERNEL_H_
