#include "gpu/element_steps.h"
#include "gpu/gpu_kernels.h"

namespace gradsync {
namespace {

constexpr int kThreads = 256;
// Enough to fill the largest GPU several times over; the loops take the rest.
constexpr size_t kMostBlocks = 132 * 8 * 8;

template <typename Step>
__global__ void __launch_bounds__(kThreads) ForEach(Step step, size_t n) {
  const size_t stride = size_t{gridDim.x} * kThreads;
  for (size_t i = size_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) step(i);
}

template <typename Step>
cudaError_t Start(const Step& step, size_t n, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const size_t blocks = (n + kThreads - 1) / kThreads;
  ForEach<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
            stream>>>(step, n);
  return cudaGetLastError();
}

constexpr int kLanes = 16;
constexpr int kTile = 256 * kLanes;
constexpr int kWarp = 32;
constexpr int kSumThreads = 16 * kWarp;

// The first warp adds one tile, one thread per lane, while the others fetch the next.
__global__ void __launch_bounds__(kSumThreads)
    SumOfSquares(const float* __restrict__ x, size_t n, double* __restrict__ sum) {
  __shared__ float tiles[2][kTile];
  __shared__ double lanes[kLanes];
  const int thread = static_cast<int>(threadIdx.x);
  const size_t num_tiles = (n + kTile - 1) / kTile;
  double lane = 0;
  // Turn t fetches tile t and adds tile t - 1.
  for (size_t t = 0; t <= num_tiles; ++t) {
    if (thread >= kWarp) {
      float* const tile = tiles[t % 2];
      const size_t begin = t * kTile;
      for (int i = thread - kWarp; i < kTile && begin + i < n; i += kSumThreads - kWarp) {
        tile[i] = x[begin + i];
      }
    } else if (thread < kLanes && t > 0) {
      const float* const tile = tiles[(t - 1) % 2];
      const size_t begin = (t - 1) * kTile;
      const int size = static_cast<int>(n - begin < kTile ? n - begin : kTile);
#pragma unroll 8
      for (int i = thread; i < size; i += kLanes) {
        const double v = static_cast<double>(tile[i]);
        lane += v * v;
      }
    }
    __syncthreads();
  }
  if (thread < kLanes) lanes[thread] = lane;
  __syncthreads();
  if (thread != 0) return;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  *sum = lanes[0];
}

// Blocks of one image, so that the table, which each block fetches, is small beside what it writes.
constexpr size_t kMostBlocksPerImage = 16;
constexpr size_t kMostImageRows = 65535;  // blockIdx.y

// A thread does all channels of a pixel, so that channels-last values are written side by side.
template <typename Value>
__global__ void __launch_bounds__(kThreads)
    LookUpBytes(ImageLayout layout, const uint8_t* __restrict__ bytes,
                const Value* __restrict__ table, Value* __restrict__ values) {
  __shared__ Value own_table[ImageLayout::kMostChannels * 256];
  for (size_t i = threadIdx.x; i < layout.channels * 256; i += kThreads) own_table[i] = table[i];
  __syncthreads();
  for (size_t image = blockIdx.y; image < layout.images; image += gridDim.y) {
    const size_t stride = size_t{gridDim.x} * kThreads;
    for (size_t p = size_t{blockIdx.x} * kThreads + threadIdx.x; p < layout.pixels; p += stride) {
      for (size_t c = 0; c < layout.channels; ++c) {
        values[layout.ValueIndex(image, c, p)] =
            own_table[c * 256 + bytes[layout.ByteIndex(image, c, p)]];
      }
    }
  }
}

template <typename Value>
cudaError_t StartLookUp(const ImageLayout& layout, const uint8_t* bytes, const void* table,
                        void* values, cudaStream_t stream) {
  const size_t wanted = (layout.pixels + kThreads - 1) / kThreads;
  const dim3 grid(
      static_cast<unsigned>(wanted < kMostBlocksPerImage ? wanted : kMostBlocksPerImage),
      static_cast<unsigned>(layout.images < kMostImageRows ? layout.images : kMostImageRows));
  LookUpBytes<<<grid, kThreads, 0, stream>>>(layout, bytes, static_cast<const Value*>(table),
                                             static_cast<Value*>(values));
  return cudaGetLastError();
}

}  // namespace

cudaError_t StartScaleTwice(float* x, size_t n, float a, float b, cudaStream_t stream) {
  return Start([=] __device__(size_t i) { x[i] = ScaleTwiceElement(x[i], a, b); }, n, stream);
}

cudaError_t StartScaleBy(float* x, size_t n, const float* factor, cudaStream_t stream) {
  return Start([=] __device__(size_t i) { x[i] = x[i] * *factor; }, n, stream);
}

cudaError_t StartSgdStep(const SgdCoefficients& c, float* param, const float* grad,
                         float* momentum_buffer, size_t n, cudaStream_t stream) {
  if (c.momentum == 0) {
    return Start([=] __device__(size_t i) { param[i] = SgdElement(c, param[i], grad[i], nullptr); },
                 n, stream);
  }
  return Start(
      [=] __device__(size_t i) {
        // At the first step the buffer need not be read.
        float buffer = c.first_step ? 0.0f : momentum_buffer[i];
        param[i] = SgdElement(c, param[i], grad[i], &buffer);
        momentum_buffer[i] = buffer;
      },
      n, stream);
}

cudaError_t StartAdamStep(const AdamCoefficients& c, float* param, const float* grad,
                          float* exp_avg, float* exp_avg_sq, size_t n, cudaStream_t stream) {
  return Start(
      [=] __device__(size_t i) {
        float average = exp_avg[i];
        float squares = exp_avg_sq[i];
        param[i] = AdamElement(c, param[i], grad[i], &average, &squares);
        exp_avg[i] = average;
        exp_avg_sq[i] = squares;
      },
      n, stream);
}

cudaError_t StartSumOfSquares(const float* x, size_t n, double* sum, cudaStream_t stream) {
  SumOfSquares<<<1, kSumThreads, 0, stream>>>(x, n, sum);
  return cudaGetLastError();
}

cudaError_t StartLookUpBytes(const ImageLayout& layout, const uint8_t* bytes, const void* table,
                             void* values, cudaStream_t stream) {
  if (layout.channels > ImageLayout::kMostChannels) return cudaErrorInvalidValue;
  if (layout.values() == 0) return cudaSuccess;
  if (layout.element_bytes == 4) {
    return StartLookUp<uint32_t>(layout, bytes, table, values, stream);
  }
  if (layout.element_bytes == 2) {
    return StartLookUp<uint16_t>(layout, bytes, table, values, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gradsync
