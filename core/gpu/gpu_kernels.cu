#include "core/gpu/element_steps.h"
#include "core/gpu/gpu_kernels.h"
#include "core/gpu/kernel_operands.h"

namespace gradsync {
namespace {

constexpr int kThreads = 256;
// Enough to fill the largest GPU several times over; the loops take the rest.
constexpr size_t kMostBlocks = 132 * 8 * 8;

// Floats that one instruction loads or stores.
template <int kWidth>
struct alignas(kWidth * sizeof(float)) Pack {
  float at[kWidth];
};

template <int kWidth>
__device__ inline Pack<kWidth> Load(const float* from) {
  return *reinterpret_cast<const Pack<kWidth>*>(from);
}

template <int kWidth>
__device__ inline void Store(float* to, const Pack<kWidth>& pack) {
  *reinterpret_cast<Pack<kWidth>*>(to) = pack;
}

// A step is what a thread does with kWidth elements from the i-th on. Begin() is called once by
// each thread, before its first.
template <typename Step>
__global__ void __launch_bounds__(kThreads) ForEach(Step start, VectorSplit split, size_t n) {
  const auto step = start.Begin();
  const size_t stride = size_t{gridDim.x} * kThreads;
  const size_t thread = size_t{blockIdx.x} * kThreads + threadIdx.x;
  for (size_t i = thread; i < split.vectors; i += stride) {
    step.template At<kVectorFloats>(split.head + i * kVectorFloats);
  }
  const size_t singles = split.singles(n);
  for (size_t i = thread; i < singles; i += stride) step.template At<1>(split.Single(i));
}

// `phase`: of the addresses of the elements (core/gpu/kernel_operands.h).
template <typename Step>
cudaError_t Start(const Step& step, size_t n, int phase, cudaStream_t stream) {
  if (n == 0) return cudaSuccess;
  const VectorSplit split = SplitVectors(phase, 0, n);
  const size_t turns = split.vectors > split.singles(n) ? split.vectors : split.singles(n);
  const size_t blocks = (turns + kThreads - 1) / kThreads;
  ForEach<<<static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, 0,
            stream>>>(step, split, n);
  return cudaGetLastError();
}

struct ScaleTwiceStep {
  float* x;
  float a;
  float b;

  __device__ ScaleTwiceStep Begin() const { return *this; }
  template <int kWidth>
  __device__ void At(size_t i) const {
    Pack<kWidth> values = Load<kWidth>(x + i);
    for (float& value : values.at) value = ScaleTwiceElement(value, a, b);
    Store(x + i, values);
  }
};

// The factor may lie in the host's memory, which is far: a thread reads it once.
struct ScaleByStep {
  struct Known {
    float* x;
    float factor;

    template <int kWidth>
    __device__ void At(size_t i) const {
      Pack<kWidth> values = Load<kWidth>(x + i);
      for (float& value : values.at) value = value * factor;
      Store(x + i, values);
    }
  };

  float* x;
  const float* factor;

  __device__ Known Begin() const { return {x, *factor}; }
};

struct PlainSgdStep {
  SgdCoefficients c;
  float* param;
  const float* grad;

  __device__ PlainSgdStep Begin() const { return *this; }
  template <int kWidth>
  __device__ void At(size_t i) const {
    Pack<kWidth> p = Load<kWidth>(param + i);
    const Pack<kWidth> g = Load<kWidth>(grad + i);
    for (int k = 0; k < kWidth; ++k) p.at[k] = SgdElement(c, p.at[k], g.at[k], nullptr);
    Store(param + i, p);
  }
};

struct MomentumSgdStep {
  SgdCoefficients c;
  float* param;
  const float* grad;
  float* buffer;

  __device__ MomentumSgdStep Begin() const { return *this; }
  template <int kWidth>
  __device__ void At(size_t i) const {
    Pack<kWidth> p = Load<kWidth>(param + i);
    const Pack<kWidth> g = Load<kWidth>(grad + i);
    // At the first step the buffer need not be read.
    Pack<kWidth> b = c.first_step ? Pack<kWidth>{} : Load<kWidth>(buffer + i);
    for (int k = 0; k < kWidth; ++k) p.at[k] = SgdElement(c, p.at[k], g.at[k], &b.at[k]);
    Store(param + i, p);
    Store(buffer + i, b);
  }
};

struct AdamStepOf {
  AdamCoefficients c;
  float* param;
  const float* grad;
  float* exp_avg;
  float* exp_avg_sq;

  __device__ AdamStepOf Begin() const { return *this; }
  template <int kWidth>
  __device__ void At(size_t i) const {
    Pack<kWidth> p = Load<kWidth>(param + i);
    const Pack<kWidth> g = Load<kWidth>(grad + i);
    Pack<kWidth> m = Load<kWidth>(exp_avg + i);
    Pack<kWidth> v = Load<kWidth>(exp_avg_sq + i);
    for (int k = 0; k < kWidth; ++k) {
      p.at[k] = AdamElement(c, p.at[k], g.at[k], &m.at[k], &v.at[k]);
    }
    Store(param + i, p);
    Store(exp_avg + i, m);
    Store(exp_avg_sq + i, v);
  }
};

constexpr int kLanes = 16;
constexpr int kTile = 256 * kLanes;
constexpr int kWarp = 32;
constexpr int kSumThreads = 16 * kWarp;

// A block's sum: the first warp adds one tile, one thread per lane, while the others fetch the
// next. Thread 0 has the result.
__device__ double BlockSumOfSquares(const float* __restrict__ x, size_t n) {
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
  if (thread != 0) return 0;
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
}

__global__ void __launch_bounds__(kSumThreads)
    SumOfSquares(const float* __restrict__ x, size_t n, double* __restrict__ sum) {
  const double found = BlockSumOfSquares(x, n);
  if (threadIdx.x == 0) *sum = found;
}

// One thread reads the piece for its block: pieces may lie in the host's memory, which is far.
__global__ void __launch_bounds__(kSumThreads)
    SumsOfSquares(const SquaresPiece* __restrict__ pieces, double* __restrict__ sums) {
  __shared__ SquaresPiece piece;
  if (threadIdx.x == 0) piece = pieces[blockIdx.x];
  __syncthreads();
  const double found = BlockSumOfSquares(piece.x, static_cast<size_t>(piece.count));
  if (threadIdx.x == 0) sums[blockIdx.x] = found;
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
  return Start(ScaleTwiceStep{x, a, b}, n, VectorPhase(x), stream);
}

cudaError_t StartScaleBy(float* x, size_t n, const float* factor, cudaStream_t stream) {
  return Start(ScaleByStep{x, factor}, n, VectorPhase(x), stream);
}

cudaError_t StartSgdStep(const SgdCoefficients& c, float* param, const float* grad,
                         float* momentum_buffer, size_t n, cudaStream_t stream) {
  const int phase = CommonPhase(VectorPhase(param), grad);
  if (c.momentum == 0) return Start(PlainSgdStep{c, param, grad}, n, phase, stream);
  return Start(MomentumSgdStep{c, param, grad, momentum_buffer}, n,
               CommonPhase(phase, momentum_buffer), stream);
}

cudaError_t StartAdamStep(const AdamCoefficients& c, float* param, const float* grad,
                          float* exp_avg, float* exp_avg_sq, size_t n, cudaStream_t stream) {
  const int phase =
      CommonPhase(CommonPhase(CommonPhase(VectorPhase(param), grad), exp_avg), exp_avg_sq);
  return Start(AdamStepOf{c, param, grad, exp_avg, exp_avg_sq}, n, phase, stream);
}

cudaError_t StartSumOfSquares(const float* x, size_t n, double* sum, cudaStream_t stream) {
  SumOfSquares<<<1, kSumThreads, 0, stream>>>(x, n, sum);
  return cudaGetLastError();
}

cudaError_t StartSumsOfSquares(const SquaresPiece* pieces, size_t num_pieces, double* sums,
                               cudaStream_t stream) {
  if (num_pieces == 0) return cudaSuccess;
  SumsOfSquares<<<static_cast<unsigned>(num_pieces), kSumThreads, 0, stream>>>(pieces, sums);
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
