#include "worker/models/channel_parts.h"
#include "worker/models/pool_kernels.h"

namespace gradsync {
namespace {

constexpr int kThreads = 256;

// Of thread `index`: neighbouring threads have neighbouring parts, then columns.
struct Work {
  __device__ Work(const PoolShape& shape, unsigned index)
      : place{}, channel(index % static_cast<unsigned>(shape.parts()) * kPart) {
    unsigned rest = index / static_cast<unsigned>(shape.parts());
    place.column = rest % static_cast<unsigned>(shape.columns());
    rest /= static_cast<unsigned>(shape.columns());
    place.row = rest % static_cast<unsigned>(shape.rows());
    place.image = rest / static_cast<unsigned>(shape.rows());
  }

  PoolPlace place;
  int64_t channel;  // the first of kPart
};

__device__ inline int64_t PixelAt(const PoolShape& shape, const Work& work, int64_t row,
                                  int64_t column) {
  return ((work.place.image * shape.height + row) * shape.width + column) * shape.channels +
         work.channel;
}

__device__ inline int64_t WindowAt(const PoolShape& shape, const Work& work, int64_t row,
                                   int64_t column) {
  return ((work.place.image * shape.rows() + row) * shape.columns() + column) * shape.channels +
         work.channel;
}

union PackedCodes {
  uint2 words;
  Codes codes;
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaxPool(PoolShape shape, unsigned threads, const T* x, T* y, uint8_t* codes) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= threads) return;
  const Work work(shape, index);
  // All loads are on their way before the first comparison.
  typename Parts<T>::Raw raw[PoolShape::kCodes];
#pragma unroll
  for (int code = 0; code < PoolShape::kCodes; ++code) {
    if (!work.place.Has(shape, code)) continue;
    raw[code] = Parts<T>::Load(
        x + PixelAt(shape, work, work.place.pixel_row(code), work.place.pixel_column(code)));
  }
  Floats largest = {};
  PackedCodes packed = {};
  LargestOfWindow(
      shape, work.place, [&](int code) { return Parts<T>::Read(raw[code]); }, &largest,
      &packed.codes);
  const int64_t at = WindowAt(shape, work, work.place.row, work.place.column);
  Parts<T>::Store(y + at, largest);
  *reinterpret_cast<uint2*>(codes + at) = packed.words;
}

// A thread has a block of 2x2 pixels, and looks at four windows for it.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    MaxPoolGradient(PoolShape shape, unsigned threads, const T* dy, const uint8_t* codes, T* dx) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= threads) return;
  const Work work(shape, index);
  const PoolPlace& block = work.place;
  const auto has = [&](int p, int q) {
    return block.row + p < shape.rows() && block.column + q < shape.columns();
  };
  Floats gradients[2][2] = {};
  PackedCodes packed[2][2] = {};
#pragma unroll
  for (int p = 0; p < 2; ++p) {
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      if (!has(p, q)) continue;
      const int64_t at = WindowAt(shape, work, block.row + p, block.column + q);
      gradients[p][q] = Parts<T>::Read(Parts<T>::Load(dy + at));
      packed[p][q].words = *reinterpret_cast<const uint2*>(codes + at);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int64_t row = 2 * block.row + i, column = 2 * block.column + j;
      if (row >= shape.height || column >= shape.width) continue;
      const Floats sum = GradientOfPixel(
          i, j, has, [&](int p, int q) -> const Floats& { return gradients[p][q]; },
          [&](int p, int q) -> const Codes& { return packed[p][q].codes; });
      Parts<T>::Store(dx + PixelAt(shape, work, row, column), sum);
    }
  }
}

// As many threads as there are windows, and so blocks of pixels.
unsigned ThreadsFor(const PoolShape& shape) {
  return static_cast<unsigned>(shape.windows() * shape.parts());
}

unsigned BlocksFor(const PoolShape& shape) { return (ThreadsFor(shape) + kThreads - 1) / kThreads; }

template <typename T>
cudaError_t Forward(const PoolShape& shape, const void* x, void* y, uint8_t* codes,
                    cudaStream_t stream) {
  MaxPool<T><<<BlocksFor(shape), kThreads, 0, stream>>>(
      shape, ThreadsFor(shape), static_cast<const T*>(x), static_cast<T*>(y), codes);
  return cudaGetLastError();
}

template <typename T>
cudaError_t Backward(const PoolShape& shape, const void* dy, const uint8_t* codes, void* dx,
                     cudaStream_t stream) {
  MaxPoolGradient<T><<<BlocksFor(shape), kThreads, 0, stream>>>(
      shape, ThreadsFor(shape), static_cast<const T*>(dy), codes, static_cast<T*>(dx));
  return cudaGetLastError();
}

}  // namespace

cudaError_t StartMaxPool(NormType type, const PoolShape& shape, const void* x, void* y,
                         uint8_t* codes, cudaStream_t stream) {
  switch (type) {
    case NormType::kFloat:
      return Forward<float>(shape, x, y, codes, stream);
    case NormType::kHalf:
      return Forward<__half>(shape, x, y, codes, stream);
    case NormType::kBfloat16:
      return Forward<__nv_bfloat16>(shape, x, y, codes, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t StartMaxPoolGradient(NormType type, const PoolShape& shape, const void* dy,
                                 const uint8_t* codes, void* dx, cudaStream_t stream) {
  switch (type) {
    case NormType::kFloat:
      return Backward<float>(shape, dy, codes, dx, stream);
    case NormType::kHalf:
      return Backward<__half>(shape, dy, codes, dx, stream);
    case NormType::kBfloat16:
      return Backward<__nv_bfloat16>(shape, dy, codes, dx, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace gradsync
