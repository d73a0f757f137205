// For functions that kernels call and the host can run too.

#ifndef GRADSYNC_CORE_GPU_HOST_DEVICE_H_
#define GRADSYNC_CORE_GPU_HOST_DEVICE_H_

#ifdef __CUDACC__
#define GRADSYNC_HOST_DEVICE __host__ __device__
#else
#define GRADSYNC_HOST_DEVICE
#endif

#endif  // GRADSYNC_CORE_GPU_HOST_DEVICE_H_
