// The largest of 3x3 pixels, every second one each way: what follows the first layer of a ResNet.
//
// LibTorch's operation for channels-last images notes where each value was in 8 bytes and takes, at
// 128 images of 112x112x64 in bf16 on an H200, 0.42 ms forward and 0.91 backward. With E bytes of
// input these read E and write E/4, and a byte of E/8 values, and back again.
//
// Free of LibTorch; worker/models/image_kernels.h is what models call. Calls queue one kernel on
// `stream`, and nothing else. They return cudaSuccess or what kept it from starting.

#ifndef GRADSYNC_WORKER_MODELS_POOL_KERNELS_H_
#define GRADSYNC_WORKER_MODELS_POOL_KERNELS_H_

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "worker/models/norm_kernels.h"
#include "worker/models/pool_window.h"

namespace gradsync {

// y [images, rows, columns, channels] and codes, a byte each, of x [images, height, width,
// channels]. First elements at multiples of 16 bytes, codes of 8. As many parts of x as fit an int.
cudaError_t StartMaxPool(NormType type, const PoolShape& shape, const void* x, void* y,
                         uint8_t* codes, cudaStream_t stream);

// dx, in fp32 and then rounded.
cudaError_t StartMaxPoolGradient(NormType type, const PoolShape& shape, const void* dy,
                                 const uint8_t* codes, void* dx, cudaStream_t stream);

}  // namespace gradsync

#endif  // GRADSYNC_WORKER_MODELS_POOL_KERNELS_H_
